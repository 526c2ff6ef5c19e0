"""Small tensors on their way to the device that computes."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`, without waiting for what a GPU is still doing.

    From pageable memory a copy would wait until the GPU has finished all that it was given before, and the GPU would
    then stand idle until it is given more. torch keeps the pinned memory until the copy is done.
    """
    return tensor.to(device) if device.type != "cuda" else tensor.pin_memory().to(device, non_blocking=True)
