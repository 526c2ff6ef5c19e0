"""Where an operation's kernel runs, and where its definition."""

from __future__ import annotations

import torch
from torch import Tensor


def has_kernel(tensor: Tensor) -> bool:
    """On a GPU, but for float64, whose kernels would compute in float32."""
    return tensor.is_cuda and tensor.dtype != torch.float64


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """What an operation on `tensor` computes in: float32, or float64."""
    return torch.promote_types(tensor.dtype, torch.float32)
