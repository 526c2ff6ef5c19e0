"""Small models on disk, their configuration, and what transformers' own forward says of them."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from grpo.config.schema import Config
from grpo.models.loading import load_model
from grpo.models.shipped import SHAPES

Family = Literal["llama", "qwen2", "qwen3"]
VOCABULARY = 331  # neither a multiple of what an engine pads to nor the tokenizer's 259
CONTEXT = 256


def write_model(folder: Path, family: Family = "llama", *, tied: bool = False, seed: int = 0, **changes: Any) -> Path:
    """A complete model folder: 2 layers, 4 query heads on 2 KV heads, tiny-llama's byte tokenizer, large weights."""
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": tied, "initializer_range": 0.25, "bos_token_id": 257, "eos_token_id": 258,
        "pad_token_id": 256,
    }  # fmt: skip
    if family == "qwen2":
        shape["hidden_size"] = 128  # its head size follows from it
    kind = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}[family]
    architecture = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[family]
    kind(**(shape | changes), architectures=[architecture]).save_pretrained(folder)
    model = load_model(folder, dtype=torch.float32, random_weights=True, seed=seed)
    _shake(model, seed)
    model.save_pretrained(folder)
    for file in (SHAPES / "tiny-llama").glob("*token*"):
        shutil.copy(file, folder)
    return folder


def _shake(model: PreTrainedModel, seed: int) -> None:
    """Norms and biases start at 1 and 0, where a decoder that ignored them would not be found out."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


def make_config(model: Path | str, *, backend: str = "hf", precision: str = "float32", **policy: Any) -> Config:
    """A configuration for an engine on the CPU."""
    generation = {"backend": backend, **policy.pop("generation", {})}
    return Config.model_validate(
        {
            "policy": {
                "model_name": str(model), "precision": precision, "max_total_sequence_length": CONTEXT,
                "generation": generation, **policy,
            },
            "data": {"train": {"kind": "file", "data_path": "unused.jsonl"}},
            "env": {},
            "cluster": {"gpus_per_node": 0},
        }
    )  # fmt: skip


def weights_of(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model folder under their names, tied ones once."""
    for name, parameter in load_model(folder, dtype=torch.float32).named_parameters():
        yield name, parameter.detach()


@torch.no_grad()
def reference_logits(model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """[T, V] float64: what the model's own forward, without any cache, says before each token of the completion."""
    logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0]
    return logits[len(prompt) - 1 : -1].double()


def reference_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0
) -> Tensor:
    """[T] float64: log_softmax(z / T) of the completion's tokens."""
    logprobs = (reference_logits(model, prompt, completion) / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(completion)[:, None])[:, 0]


@torch.no_grad()
def greedy(model: PreTrainedModel, prompt: Sequence[int], length: int) -> list[int]:
    """The most probable continuation, by full forwards."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]
