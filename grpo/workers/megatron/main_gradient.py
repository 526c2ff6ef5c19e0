"""The output weight's gradient in Megatron's float32 buffer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo.kernels.products import added_product


class MainGradient:
    """`grpo.workers.policy.token_logprobs.WideGradient` of a parameter that Megatron's DDP has a `main_grad` for."""

    def __init__(self, weight: Any, *, embeds: bool) -> None:
        """`embeds`: the embedding on this rank uses the weight as well, so that autograd has a gradient anyway."""
        self._weight, self._embeds = weight, embeds

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Add left.T @ right; left [N, rows], right [N, columns] in the compute dtype."""
        added_product(self._weight.main_grad, left, right, self._weight.main_grad.dtype)

    def for_autograd(self) -> Tensor | None:
        """Megatron's hook counts the gradient as ready when autograd has one, and is told that it is added already."""
        if self._embeds:
            return None
        self._weight.grad_added_to_main_grad = True
        return torch.empty_like(self._weight)
