"""How kernels are cut into programs."""

from __future__ import annotations

from torch import Tensor


def warps(elements: int) -> int:
    """Of a program that holds so many elements of each tensor: 16 elements a thread, 4 to 16 warps."""
    return min(16, max(4, elements // 512))


def side_by_side(rows: Tensor) -> Tensor:
    """With the elements of the last dimension next to each other, which the kernels take for granted."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()
