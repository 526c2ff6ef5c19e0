"""What both engines refuse before they start to sample."""

from __future__ import annotations

from collections.abc import Sequence

from grpo.errors import GenerationError
from grpo.workers.protocol import SamplingParams


def check_requests(
    prompts: Sequence[Sequence[int]],
    num_completions: int,
    sampling: SamplingParams,
    seeds: Sequence[int],
    *,
    context: int,
    vocabulary: int,
) -> None:
    """Refuse what cannot be sampled.

    Args:
        prompts: token ids.
        num_completions: of each prompt.
        sampling: how.
        seeds: one a prompt, each in 0 ... 2^64 - 1.
        context: tokens of prompt and completion that the engine can hold.
        vocabulary: rows of the model's embedding.

    Raises:
        GenerationError: a count, length, id or parameter is out of range.
    """
    if len(seeds) != len(prompts):
        raise GenerationError(f"{len(prompts)} prompts but {len(seeds)} seeds: give one seed a prompt")
    if num_completions < 1:
        raise GenerationError(f"num_completions is {num_completions}: at least 1 completion a prompt")
    for seed in seeds:
        if not 0 <= seed < 1 << 64:
            raise GenerationError(f"seed {seed} is outside 0 ... 2^64 - 1")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise GenerationError(f"prompt {index} has no tokens: at least one is needed to start from")
        if len(prompt) >= context:
            raise GenerationError(
                f"prompt {index} has {len(prompt)} tokens, which leaves no room for a completion in the engine's "
                f"context of {context} (policy.max_total_sequence_length, policy.generation.vllm_cfg.max_model_len)"
            )
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise GenerationError(
                f"prompt {index} has token ids from {min(prompt)} to {max(prompt)}, the model's vocabulary is 0 to "
                f"{vocabulary - 1}"
            )
    _check_sampling(sampling, vocabulary)


def _check_sampling(sampling: SamplingParams, vocabulary: int) -> None:
    last = vocabulary - 1
    valid = {
        "max_new_tokens": (sampling.max_new_tokens >= 1, "at least 1"),
        "temperature": (sampling.temperature >= 0, "0 (greedy) or more"),
        "top_p": (0 < sampling.top_p <= 1, "in (0, 1]"),
        "top_k": (sampling.top_k is None or sampling.top_k >= 1, "null or at least 1"),
        "min_new_tokens": (0 <= sampling.min_new_tokens <= sampling.max_new_tokens, "from 0 to max_new_tokens"),
        "stop_token_ids": (all(0 <= token <= last for token in sampling.stop_token_ids), f"from 0 to {last}"),
        "stop_strings": (all(sampling.stop_strings), "not empty"),
    }
    for name, (holds, wanted) in valid.items():
        if not holds:
            raise GenerationError(f"sampling parameter {name}={getattr(sampling, name)!r}: it must be {wanted}")
