"""Compute in bfloat16 over float32 masters, in one process.

What FSDP2's MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32) does: the forward pass sees rounded
parameters, and each micro-batch's gradients are added up in float32. Spacing of bfloat16 near 0.02 is 1.2e-4: without
masters, updates of 1e-6 would vanish.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo.kernels.products import added_product


class MasterGradient:
    """The gradient of a float32 master, which the products that it is made of are added into, unrounded."""

    def __init__(self, master: Tensor) -> None:
        self._master = master

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Add left.T @ right; left [N, rows], right [N, columns] in the compute dtype."""
        self._master.grad = added_product(self._master.grad, left, right, self._master.dtype)

    def add_rows(self, rows: Tensor, values: Tensor) -> None:
        """Add values [N, columns] to these rows [N] int64, in an order that does not change from run to run."""
        if self._master.grad is None:
            self._master.grad = torch.zeros_like(self._master)
        wide = values.to(self._master.dtype)
        if wide.is_cuda:  # each device has one way that is reproducible: see grpo.algorithm.layout
            self._master.grad.index_put_((rows,), wide, accumulate=True)
        else:
            self._master.grad.index_add_(0, rows, wide)

    def for_autograd(self) -> None:
        """Nothing: the rounded parameter has no gradient of its own."""


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
        by_identity = {id(each): master for each, master in zip(self._rounded, self._masters, strict=True)}
        for module in self.module.modules():
            if type(module) in _ROUNDED:
                module.__class__ = _ROUNDED[type(module)]
                module.gradient = MasterGradient(by_identity[id(module.weight)])  # type: ignore[assignment]

    @property
    def head_gradient(self) -> MasterGradient:
        """Of the output weight."""
        head = self.module.get_output_embeddings()  # type: ignore[no-untyped-call]
        assert isinstance(head, RoundedLinear)
        return head.gradient

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the masters again, after they have changed."""
        torch._foreach_copy_(self._rounded, self._masters)


class RoundedLinear(nn.Linear):
    """A linear layer whose weight's gradient goes straight into its master's, in the product that makes it."""

    gradient: MasterGradient

    def forward(self, hidden: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(hidden)
        result: Tensor = _Linear.apply(hidden, self.weight, self.bias, self.gradient)  # type: ignore[no-untyped-call]
        return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, gradient: MasterGradient) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.gradient = gradient
        return nn.functional.linear(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        grad = grads[0].flatten(0, -2)
        of_hidden = (grad @ weight).view(hidden.shape) if ctx.needs_input_grad[0] else None
        if ctx.needs_input_grad[1]:
            ctx.gradient.add_product(grad, hidden.flatten(0, -2))
        return of_hidden, None, grad.sum(0) if ctx.needs_input_grad[2] else None, None


class RoundedEmbedding(nn.Embedding):
    """An embedding whose gradient goes straight into the rows of its master's that were looked up."""

    gradient: MasterGradient

    def forward(self, tokens: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(tokens)
        result: Tensor = _Embedding.apply(tokens, self.weight, self.padding_idx, self.gradient)  # type: ignore[no-untyped-call]
        return result


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, padding: int | None, gradient: MasterGradient) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.padding, ctx.gradient = padding, gradient
        return nn.functional.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        rows, values = ctx.saved_tensors[0].flatten(), grads[0].flatten(0, -2)
        if ctx.padding is not None:
            values = values.masked_fill((rows == ctx.padding)[:, None], 0)
        ctx.gradient.add_rows(rows, values)
        return None, None, None, None


_ROUNDED: dict[type, type] = {nn.Linear: RoundedLinear, nn.Embedding: RoundedEmbedding}


def _adder(master: Tensor) -> Callable[[Tensor], None]:
    @torch.no_grad()
    def add(rounded: Tensor) -> None:
        gradient = rounded.grad
        if gradient is None:  # the products have been added already
            return
        if master.grad is None:
            master.grad = gradient.to(master.dtype)
        else:
            master.grad += gradient
        rounded.grad = None

    return add
