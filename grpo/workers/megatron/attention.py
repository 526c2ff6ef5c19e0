"""Rotary embedding and attention of Megatron's own layers: causal, packed sequences kept apart."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from grpo.kernels.rotary import rotary
from grpo.models.megatron.gpt import PackedRow
from grpo.workers.policy.attention import PackedBounds, causal_attention


class CausalAttention(nn.Module):
    """Built by Megatron with its TransformerConfig. Megatron's own attention refuses packed sequences."""

    def __init__(self, config: Any, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__()
        assert config.context_parallel_size == 1, "context parallelism needs Transformer Engine"
        self._scale = 1.0 / math.sqrt(config.kv_channels) if softmax_scale is None else softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: PackedRow | None = None, **__: Any
    ) -> Tensor:
        """[W, R, heads, D] -> [W, R, heads x D]."""
        row = packed_seq_params
        assert row is not None, "the model gives the angles"
        assert row.cosine is not None
        assert row.sine is not None
        query, key = rotary(query, key, row.cosine, row.sine)
        bounds = PackedBounds(row.lengths, row.cu_seqlens_q) if row.lengths else None
        q, k, v = (each.transpose(0, 1) for each in (query, key, value))
        attended = causal_attention(q, k, v, scaling=self._scale, packed=bounds)
        return attended.transpose(0, 1).flatten(2)
