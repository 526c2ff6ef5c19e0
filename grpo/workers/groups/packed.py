"""Tensors as bytes, so that the object store shares them between processes without a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

BUCKET_BYTES = 256 << 20  # sent at a time: enough to hide the cost of a call, little enough to hold twice


@dataclass(frozen=True)
class PackedTensor:
    """A named tensor as bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray[Any, np.dtype[np.uint8]]

    @classmethod
    def pack(cls, name: str, tensor: Tensor) -> PackedTensor:
        flat = tensor.detach().to("cpu", copy=True).contiguous().flatten()
        return cls(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat.view(torch.uint8).numpy())

    def unpack(self) -> tuple[str, Tensor]:
        data = torch.from_numpy(self.data.copy())  # what comes from the object store is read-only
        return self.name, data.view(getattr(torch, self.dtype)).view(self.shape)


def buckets(tensors: Iterable[tuple[str, Tensor]], size: int = BUCKET_BYTES) -> Iterator[list[tuple[str, Tensor]]]:
    """Tensors in their order, cut where `size` bytes have come together; a larger tensor is one bucket."""
    bucket: list[tuple[str, Tensor]] = []
    held = 0
    for name, tensor in tensors:
        bucket.append((name, tensor))
        held += tensor.nbytes
        if held >= size:
            yield bucket
            bucket, held = [], 0
    if bucket:
        yield bucket
