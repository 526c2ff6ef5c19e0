"""Matrix products of narrow factors with float32 sums that are not rounded."""

from __future__ import annotations

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """The product in `dtype`; on a GPU without rounding its float32 sums to the dtype of the factors."""
    if left.is_cuda and left.dtype != dtype:
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)


def added_product(total: Tensor | None, left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """`total` [M, K] of `dtype`, to which left.T @ right is added in place; None: a new tensor of the product.

    left [N, M] and right [N, K] are of one dtype, `dtype` or narrower.
    """
    if total is not None and not len(left):
        return total
    if total is None:
        return _wide_product(left.T, right, dtype)
    if right.dtype == dtype:
        return total.addmm_(left.T, right)
    if right.is_cuda:
        return torch.addmm(total, left.T, right, out_dtype=dtype, out=total)
    return total.addmm_(left.T.to(dtype), right.to(dtype))


def _wide_product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    if left.is_cuda:
        return product(left, right, dtype)
    return left.to(dtype) @ right.to(dtype)
