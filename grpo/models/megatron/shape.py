"""What a Megatron-Core model needs to know of a transformers configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo.errors import ModelError

ROPE_TYPES = ("default", "linear", "llama3")  # their frequencies do not depend on the length, and nothing is scaled


@dataclass(frozen=True)
class ModelShape:
    """A Llama 3.x, Qwen 2.5 or dense Qwen 3 model."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_heads: int
    num_query_groups: int
    head_dim: int
    vocab_size: int
    norm_epsilon: float
    tied: bool  # the output weight is the embedding
    qkv_bias: bool
    qk_norm: bool
    rotary_frequencies: Tensor  # [head_dim / 2] float32
    max_positions: int
    padding_token: int | None  # transformers never trains its embedding

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """From a transformers configuration.

        Raises:
            ModelError: what the Megatron model would compute otherwise than transformers.
        """
        _check(config)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            ffn_hidden_size=config.intermediate_size,
            num_heads=config.num_attention_heads,
            num_query_groups=config.num_key_value_heads,
            head_dim=head_dim,
            vocab_size=config.vocab_size,
            norm_epsilon=config.rms_norm_eps,
            tied=bool(config.tie_word_embeddings),
            qkv_bias=config.model_type == "qwen2",
            qk_norm=config.model_type == "qwen3",
            rotary_frequencies=_rotary(config),
            max_positions=config.max_position_embeddings,
            padding_token=config.pad_token_id,
        )

    @property
    def matrix_parameters(self) -> int:
        """Weights that every token is multiplied with, those of the output among them."""
        attention = 2 * self.hidden_size * (self.num_heads + self.num_query_groups) * self.head_dim
        layer = attention + 3 * self.hidden_size * self.ffn_hidden_size
        return self.num_layers * layer + self.vocab_size * self.hidden_size

    @property
    def attention_width(self) -> int:
        """Layers x heads x head size."""
        return self.num_layers * self.num_heads * self.head_dim

    def padded_vocab_size(self, tensor_parallel: int) -> int:
        """Rows of the embedding with those that make it a multiple of the tensor parallel size."""
        return -(-self.vocab_size // tensor_parallel) * tensor_parallel

    def check_layout(self, *, tensor_parallel: int, pipeline_parallel: int) -> None:
        """Raise ModelError if heads, widths or layers cannot be divided so."""
        key = "policy.megatron_cfg.tensor_model_parallel_size"
        for name, size in (
            ("num_attention_heads", self.num_heads),
            ("num_key_value_heads", self.num_query_groups),
            ("intermediate_size", self.ffn_hidden_size),
        ):
            if size % tensor_parallel:
                raise ModelError(f"{key}={tensor_parallel} does not divide the model's {name} {size}")
        if self.num_layers % pipeline_parallel:
            raise ModelError(
                f"policy.megatron_cfg.pipeline_model_parallel_size={pipeline_parallel} does not divide the model's "
                f"num_hidden_layers {self.num_layers}"
            )


def _check(config: Any) -> None:
    kind = config.model_type
    if kind not in _rotary_classes():
        raise ModelError(
            f"model_type {kind!r} has no Megatron-Core counterpart here; supported: {', '.join(_rotary_classes())}"
        )
    for name in ("attention_bias", "mlp_bias", "use_sliding_window", "attention_dropout"):
        value = getattr(config, name, None)
        if value:
            raise ModelError(
                f"config.json has {name} {value}, which the Megatron-Core model lacks; it must be 0 or false"
            )
    if config.hidden_act != "silu":
        raise ModelError(f"config.json has hidden_act {config.hidden_act!r}; the Megatron-Core model has silu")


def _rotary_classes() -> dict[str, type[torch.nn.Module]]:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    return {"llama": LlamaRotaryEmbedding, "qwen2": Qwen2RotaryEmbedding, "qwen3": Qwen3RotaryEmbedding}


def _rotary(config: Any) -> Tensor:
    rotary: Any = _rotary_classes()[config.model_type](config)
    if rotary.rope_type not in ROPE_TYPES or rotary.attention_scaling != 1.0:
        raise ModelError(
            f"config.json has rope_type {rotary.rope_type!r}; the Megatron-Core model has {', '.join(ROPE_TYPES)}"
        )
    frequencies: Tensor = rotary.inv_freq.detach().float().cpu()
    return frequencies
