"""How kernels are cut into programs."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

PER_PROCESSOR = 4  # programs that loop over rows, on each of the GPU's multiprocessors


def warps(elements: int) -> int:
    """Of a program that holds so many elements of each tensor: 16 elements a thread, 4 to 16 warps."""
    return min(16, max(4, elements // 512))


@functools.cache
def programs_at_once(device: torch.device) -> int:
    """Of kernels whose programs loop; with Triton's interpreter, which has no GPU, a few."""
    if device.type != "cuda":
        return 3
    return PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count


def side_by_side(rows: Tensor) -> Tensor:
    """With the elements of the last dimension next to each other, which the kernels take for granted."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()
