"""Tiny models, configurations and batches for tests of policy workers."""

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from grpo.batching.batch import Batch
from grpo.checkpoint.pieces import untiled
from grpo.config.schema import Config

MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
VOCABULARY = 37


def tiny_model(kind="llama", *, tied=False, seed=0, **settings):
    """A float32 model of 2 layers with grouped queries and weights large enough that its output matters."""
    config_class, model_class = MODELS[kind]
    values = {
        "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
        "tie_word_embeddings": tied, "initializer_range": 0.3, "bos_token_id": None,
        "eos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    config = config_class(**{**values, **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_class(config).eval()


def tiny_config(*, policy=None, loss_fn=None):
    """A whole configuration with these keys of `policy` and `loss_fn`; float32, no KL term unless asked for."""
    loss = {"reference_policy_kl_penalty": 0.0, **(loss_fn or {})}
    return Config.model_validate(
        {
            "policy": {"model_name": "tiny", "precision": "float32", "max_total_sequence_length": 64, **(policy or {})},
            "loss_fn": loss,
            "data": {"train": {"kind": "file", "data_path": "unused.jsonl"}},
            "env": {},
        }
    )


def random_batch(lengths=(5, 9, 3, 12, 7), prompts=(2, 4, 1, 3, 5), *, seed=0, untrained=()):
    """Random tokens, advantages and log-probs; tokens after the prompt are trained, except in the `untrained` rows.

    Values that no one may read (log-probs where the mask is false) are NaN.
    """
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    trained = [
        [row not in untrained and position >= prompt for position in range(length)]
        for row, (length, prompt) in enumerate(zip(lengths, prompts, strict=True))
    ]
    mask = torch.tensor([each for row in trained for each in row])

    def values(scale, shift):
        return (torch.randn(total, generator=generator) * scale + shift).where(mask, torch.nan)

    return Batch(
        tokens=torch.randint(0, VOCABULARY, (total,), generator=generator),
        lengths=torch.tensor(lengths),
        mask=mask,
        generation_logprobs=values(0.2, -3.0),
        advantages=torch.randn(len(lengths), generator=generator),
        old_logprobs=values(0.3, -3.0),
        reference_logprobs=values(0.3, -3.0),
    )


def dense_logprobs(model, batch, temperature=1.0):
    """[T] of the model's dtype, sequence by sequence through transformers' own forward; 0 where the mask is false."""
    parts = []
    for tokens, mask in zip(
        batch.tokens.split(batch.lengths.tolist()), batch.mask.split(batch.lengths.tolist()), strict=True
    ):
        logits = model(input_ids=tokens[None]).logits[0, :-1] / temperature
        chosen = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        parts.append(torch.cat([chosen.new_zeros(1), chosen]).where(mask, 0.0))
    return torch.cat(parts)


def joined(pieces):
    """The whole tensors of all ranks' pieces, as copies on the CPU; every element is in one piece."""
    parts = {}
    for piece in pieces:
        parts.setdefault(piece.name, []).append(piece)
    found = {}
    for name, own in parts.items():
        problem = untiled(own[0].shape, [(part.start, part.stop) for part in own])
        assert problem is None, f"{name}: {problem}"
        found[name] = torch.empty(own[0].shape, dtype=own[0].data.dtype)
        for part in own:
            found[name][tuple(map(slice, part.start, part.stop))] = part.data.detach().cpu()
    return found


def whole_state(policy):
    """The state of a policy in one process: whole tensors as copies, and values."""
    pieces, values = policy.state()
    return joined(pieces), dict(values)
