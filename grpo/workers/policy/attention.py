"""Causal attention of the policy's forward pass, for rows padded on the right and for sequences packed into one row.

Neither needs a mask: causal attention never looks right, and packed sequences are attended to one by one. So the fast
kernels apply, and the cost is the sum of the squared lengths, not the square of the sum.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from grpo.workers.policy.transfer import to_device

NAME = "grpo_causal"


@dataclass(frozen=True)
class PackedBounds:
    """Where the sequences of a packed row begin and end."""

    lengths: list[int]
    cumulative: Tensor  # [sequences + 1] int32, from 0, on the device of the row

    @functools.cached_property
    def longest(self) -> int:
        """Of the lengths."""
        return max(self.lengths)

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> PackedBounds:
        return cls(lengths, to_device(torch.from_numpy(bounds_of(lengths)), device).to(torch.int32))


def bounds_of(lengths: list[int]) -> np.ndarray:
    """[sequences + 1] int64: where each begins, and where the last ends."""
    return np.cumsum([0, *lengths])


def without_masks(model: PreTrainedModel) -> None:
    """Let transformers make no mask: it makes none for an attention it has no mask function for."""
    AttentionInterface.register(NAME, _refuse)
    model.set_attn_implementation(NAME)


def _refuse(*_: Any, **__: Any) -> tuple[Tensor, None]:
    raise AssertionError("the model's attention is not this project's own")


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scaling: float, packed: PackedBounds | None = None
) -> Tensor:
    """Query [R, W, heads, D], key and value [R, W, kv heads, D] -> [R, W, heads, D]."""
    if packed is not None and query.is_cuda and query.dtype in {torch.bfloat16, torch.float16}:
        return _packed_on_gpu(query, key, value, packed, scaling)
    bounds = [query.shape[1]] if packed is None else packed.lengths
    by_head = (each.transpose(1, 2) for each in (query, key, value))
    parts = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=q.shape[1] != k.shape[1])
        for q, k, v in zip(*(torch.split(each, bounds, 2) for each in by_head), strict=True)
    ]
    joined = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    return joined.transpose(1, 2).contiguous()


def _packed_on_gpu(query: Tensor, key: Tensor, value: Tensor, packed: PackedBounds, scaling: float) -> Tensor:
    # What torch.nn.attention.varlen calls, which takes as long in Python as the kernel does on the GPU. Keys and values
    # may have fewer heads.
    bounds, longest = packed.cumulative, packed.longest
    attended = torch.ops.aten._flash_attention_forward.default(  # noqa: SLF001
        query[0], key[0], value[0], bounds, bounds, longest, longest, 0.0, True, False, scale=scaling
    )
    return cast("Tensor", attended[0])[None]
