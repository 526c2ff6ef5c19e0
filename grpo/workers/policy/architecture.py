"""What the policy worker knows of a transformers model: that its logits are lm_head(last hidden state), and no more."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo.errors import ModelError

SUPPORTED_MODEL_TYPES = ("llama", "qwen2", "qwen3")


def check_supported(model: PreTrainedModel) -> None:
    """Refuse what the log-prob code would get wrong.

    Raises:
        ModelError: another architecture (its logits may be scaled or capped), or an output bias.
    """
    kind = model.config.model_type
    if kind not in SUPPORTED_MODEL_TYPES:
        raise ModelError(
            f"model_type {kind!r} cannot be trained: log-probs are made from the output weights alone, and its logits "
            f"may be scaled or capped; supported: {', '.join(SUPPORTED_MODEL_TYPES)}"
        )
    if model.lm_head.bias is not None:
        raise ModelError(f"{type(model).__name__} has an output bias (lm_head.bias), which log-probs would leave out")
    if model.config.to_dict().get("use_sliding_window"):
        raise ModelError("config.json has use_sliding_window true: attention to all earlier tokens alone is supported")
    if model.config.attention_dropout:
        raise ModelError(
            f"config.json has attention_dropout {model.config.attention_dropout}: it must be 0, or log-probs before "
            "and after an update would differ by chance"
        )


def checkpoint_activations(model: nn.Module) -> None:
    """Keep only each decoder layer's input for the backward pass and run the layer again there."""
    run = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.gradient_checkpointing = True
            # transformers' own hook, without its training mode
            module._gradient_checkpointing_func = run  # type: ignore[assignment]  # noqa: SLF001
            module.training = True  # of the layer alone, which is what it asks: dropout stays off within


def output_weight(model: PreTrainedModel) -> torch.Tensor:
    """[V, H]: the weight of the output embedding."""
    return model.get_output_embeddings().weight  # type: ignore[no-any-return, no-untyped-call]
