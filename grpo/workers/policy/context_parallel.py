"""Context parallelism, which neither backend has, and what takes its place."""

from __future__ import annotations

from grpo.config.schema import Policy
from grpo.errors import ConfigError

_DTENSOR = (
    "torch's ring attention is experimental, knows no packed sequences and is not exact for rows of several lengths"
)
_MEGATRON = (
    "Megatron-Core has it in Transformer Engine's attention alone, which needs sequences cut into 2 x size pieces of "
    "equal work, and the attention of its own layers has none"
)


def context_parallel_refusal(policy: Policy) -> str | None:
    """Why the enabled backend does not train with `context_parallel_size` above 1; None where it is 1."""
    if policy.megatron_cfg.enabled:
        section, tensor, size = "megatron_cfg", "tensor_model_parallel_size", policy.megatron_cfg.context_parallel_size
    else:
        section, tensor, size = "dtensor_cfg", "tensor_parallel_size", policy.dtensor_cfg.context_parallel_size
    if size == 1:
        return None
    key = f"policy.{section}."
    return (
        f"{key}context_parallel_size={size}: this backend has no context parallel: "
        f"{_MEGATRON if policy.megatron_cfg.enabled else _DTENSOR}; set 1, and for long sequences {key}{tensor} with "
        "sequence_parallel=true and activation_checkpointing=true"
    )


def refuse_context_parallel(policy: Policy) -> None:
    """Raise ConfigError where `context_parallel_size` is above 1."""
    refusal = context_parallel_refusal(policy)
    if refusal is not None:
        raise ConfigError(refusal)
