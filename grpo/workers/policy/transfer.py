"""Small tensors on their way to the device that computes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`, without waiting for what a GPU is still doing.

    From pageable memory a copy would wait until the GPU has finished all that it was given before, and the GPU would
    then stand idle until it is given more. torch keeps the pinned memory until the copy is done.
    """
    return tensor.to(device) if device.type != "cuda" else tensor.pin_memory().to(device, non_blocking=True)


def together(arrays: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """Arrays of one dtype on `device`, to a GPU in one copy that nothing waits for. On the CPU they share their memory.

    Numpy works on one thread. torch would start all of its own to lay a few thousand tokens out, and wait for those
    that another process keeps from running: beside a busy neighbour an update took twice as long.
    """
    if device.type != "cuda":
        return {name: torch.from_numpy(each) for name, each in arrays.items()}
    (dtype,) = {each.dtype for each in arrays.values()}
    sizes = [each.size for each in arrays.values()]
    pinned = torch.empty(sum(sizes), dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True)
    np.concatenate([each.reshape(-1) for each in arrays.values()], out=pinned.numpy())
    parts = torch.split(pinned.to(device, non_blocking=True), sizes)
    return {name: part.view(each.shape) for (name, each), part in zip(arrays.items(), parts, strict=True)}
