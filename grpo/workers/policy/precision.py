"""Compute in bfloat16 over float32 masters, in one process.

What FSDP2's MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32) does: the forward pass sees rounded
parameters, and each micro-batch's gradients are added up in float32. Spacing of bfloat16 near 0.02 is 1.2e-4: without
masters, updates of 1e-6 would vanish.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class RoundedCopy:
    """A module whose parameters are those of `masters`, rounded, and whose gradients are added to theirs in float32."""

    def __init__(self, masters: PreTrainedModel, dtype: torch.dtype) -> None:
        memo: dict[int, object] = {}
        for parameter in masters.parameters():
            memo[id(parameter)] = nn.Parameter(parameter.detach().to(dtype), requires_grad=parameter.requires_grad)
        # Buffers keep their dtype: rounded rotary frequencies would be wrong positions.
        self.module = copy.deepcopy(masters, memo)
        self._masters: list[Tensor] = list(masters.parameters())
        self._rounded: list[Tensor] = list(self.module.parameters())
        for master, rounded in zip(self._masters, self._rounded, strict=True):
            if rounded.requires_grad:
                rounded.register_post_accumulate_grad_hook(_adder(master))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the masters again, after they have changed."""
        torch._foreach_copy_(self._rounded, self._masters)


def _adder(master: Tensor) -> Callable[[Tensor], None]:
    @torch.no_grad()
    def add(rounded: Tensor) -> None:
        gradient = rounded.grad
        assert gradient is not None
        if master.grad is None:
            master.grad = gradient.to(master.dtype)
        else:
            master.grad += gradient
        rounded.grad = None

    return add
