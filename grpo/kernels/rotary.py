"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), of heads cut in two halves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo.kernels.dispatch import has_kernel, wide_dtype


def rotary(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Query [A, B, heads, D] and key [A, B, kv heads, D] turned by their positions' angles, rounded once.

    cosine, sine: [A or 1, B or 1, D / 2 or more], of which the first D / 2 count; element i of a head's first half is
    paired with element i of its second. They have no gradient.
    """
    if not has_kernel(query):
        return _turned(query, cosine, sine), _turned(key, cosine, sine)
    if not torch.is_grad_enabled():
        from grpo.kernels.gpu.rotary import turn

        return turn(query, key, cosine, sine, back=False)
    result: tuple[Tensor, Tensor] = _Rotary.apply(query, key, cosine, sine)  # type: ignore[no-untyped-call]
    return result


def _turned(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    wide = wide_dtype(heads)
    first, second = heads.to(wide).chunk(2, -1)
    c, s = (each[:, :, None, : first.shape[-1]].to(wide) for each in (cosine, sine))
    return torch.cat((first * c - second * s, second * c + first * s), -1).to(heads.dtype)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        from grpo.kernels.gpu.rotary import turn

        ctx.save_for_backward(cosine, sine)
        return turn(query, key, cosine, sine, back=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from grpo.kernels.gpu.rotary import turn

        return *turn(*grads, *ctx.saved_tensors, back=True), None, None
