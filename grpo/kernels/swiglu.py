"""silu(gate) x up, the activation of gated MLPs (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from grpo.kernels.dispatch import has_kernel, wide_dtype


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) x up of tensors of one shape, computed in float32 and rounded once."""
    if not has_kernel(gate):
        return _defined(gate, up)
    if not torch.is_grad_enabled():
        return _launched(gate, up)
    result: Tensor = _Swiglu.apply(gate, up)  # type: ignore[no-untyped-call]
    return result


def swiglu_joined(both: Tensor) -> Tensor:
    """The same of [..., 2 F], gate first -> [..., F]."""
    if not has_kernel(both):
        return _defined(*both.chunk(2, -1))
    if not torch.is_grad_enabled():
        return _launched(*both.chunk(2, -1))
    result: Tensor = _SwigluJoined.apply(both)  # type: ignore[no-untyped-call]
    return result


def _defined(gate: Tensor, up: Tensor) -> Tensor:
    wide = wide_dtype(gate)
    return (silu(gate.to(wide)) * up.to(wide)).to(gate.dtype)


def _launched(gate: Tensor, up: Tensor) -> Tensor:
    from grpo.kernels.gpu.swiglu import swiglu_forward

    gate_rows, up_rows = (each.reshape(-1, each.shape[-1]) for each in (gate, up))
    return swiglu_forward(gate_rows, up_rows).view(gate.shape)


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        from grpo.kernels.gpu.swiglu import swiglu_forward

        gate_rows, up_rows = (each.reshape(-1, each.shape[-1]) for each in (gate, up))
        ctx.save_for_backward(gate_rows, up_rows)
        return swiglu_forward(gate_rows, up_rows).view(gate.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        from grpo.kernels.gpu.swiglu import swiglu_backward

        gate, up = ctx.saved_tensors
        out = [torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (gate, up)]
        swiglu_backward(grads[0].reshape(gate.shape), gate, up, *out)
        return tuple(each.view(grads[0].shape) for each in out)


class _SwigluJoined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        from grpo.kernels.gpu.swiglu import swiglu_forward

        rows = both.reshape(-1, both.shape[-1])
        ctx.save_for_backward(rows)
        return swiglu_forward(*rows.chunk(2, -1)).view(*both.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        from grpo.kernels.gpu.swiglu import swiglu_backward

        (rows,) = ctx.saved_tensors
        out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        grad = grads[0].reshape(-1, grads[0].shape[-1])
        swiglu_backward(grad, *rows.chunk(2, -1), *out.chunk(2, -1))
        return (out.view(*grads[0].shape[:-1], -1),)
