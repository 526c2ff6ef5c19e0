"""Root mean square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm: hidden / sqrt(mean(hidden^2) + epsilon) x weight over the last dimension, rounded once.

    hidden [..., H], weight [H]. torch has one kernel each for it and its gradients on a GPU.
    """
    return torch.nn.functional.rms_norm(hidden, weight.shape, weight, epsilon)
