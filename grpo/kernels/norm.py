"""Root mean square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo.kernels.dispatch import has_kernel


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm: hidden / sqrt(mean(hidden^2) + epsilon) x weight over the last dimension, rounded once.

    hidden [..., H], weight [H]; its gradient is summed in float32 (float64 where `hidden` is).
    """
    if not has_kernel(hidden):
        return torch.nn.functional.rms_norm(hidden, weight.shape, weight, epsilon)
    result: Tensor = _RMSNorm.apply(hidden, weight, epsilon)  # type: ignore[no-untyped-call]
    return result


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        from grpo.kernels.gpu.norm import rms_norm_forward

        rows = hidden.reshape(-1, hidden.shape[-1])
        output, inverse_root = rms_norm_forward(rows, weight, epsilon)
        ctx.save_for_backward(rows, weight, inverse_root)
        return output.view(hidden.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from grpo.kernels.gpu.norm import rms_norm_backward

        rows, weight, inverse_root = ctx.saved_tensors
        grad_rows, grad_weight = rms_norm_backward(grads[0].reshape(rows.shape), rows, weight, inverse_root)
        return grad_rows.view(grads[0].shape), grad_weight, None
