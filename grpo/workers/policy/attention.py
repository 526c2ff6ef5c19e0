"""Causal attention of the policy's forward pass, for rows padded on the right and for sequences packed into one row.

Neither needs a mask: causal attention never looks right, and packed sequences are attended to one by one. So the fast
kernels apply, and the cost is the sum of the squared lengths, not the square of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from grpo.workers.policy.transfer import to_device

NAME = "grpo_causal"


@dataclass(frozen=True)
class PackedBounds:
    """Where the sequences of a packed row begin and end."""

    lengths: list[int]
    cumulative: Tensor  # [sequences + 1] int32, from 0, on the device of the row

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> PackedBounds:
        ends = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
        return cls(lengths, to_device(ends, device))


def use_causal_attention(model: PreTrainedModel) -> None:
    """Let the model attend by this module. transformers makes no mask for an attention it has no mask function for."""
    AttentionInterface.register(NAME, causal_attention)
    model.set_attn_implementation(NAME)


def causal_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    packed: PackedBounds | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Query [R, heads, W, D], key and value [R, kv heads, W, D] -> [R, W, heads, D], for AttentionInterface."""
    assert attention_mask is None, "this attention has no use for a mask"
    if packed is not None and query.is_cuda and query.dtype != torch.float32:
        return _packed_on_gpu(query, key, value, packed, scaling), None
    bounds = [query.shape[2]] if packed is None else packed.lengths
    parts = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1])
        for q, k, v in zip(*(torch.split(each, bounds, 2) for each in (query, key, value)), strict=True)
    ]
    joined = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    return joined.transpose(1, 2).contiguous(), None


def _packed_on_gpu(query: Tensor, key: Tensor, value: Tensor, packed: PackedBounds, scaling: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    repeats = query.shape[1] // key.shape[1]
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))  # [W, heads, D]
    if repeats > 1:  # `enable_gqa` came with torch 2.12
        k, v = (each.repeat_interleave(repeats, 1) for each in (k, v))
    bounds, longest = packed.cumulative, max(packed.lengths)
    attended = varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=(-1, 0))
    return cast("Tensor", attended)[None]
