"""The storages behind tensors. A storage that is emptied and filled again keeps every view of it: FSDP's and Megatron's
flat buffers, tied weights, what an optimizer holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor


def storages_of(
    tensors: Iterable[Tensor], device: torch.device, *, without: Iterable[Tensor] = ()
) -> list[UntypedStorage]:
    """Each storage on a device of this type once, in the order of its first tensor; this rank's part of a DTensor."""
    found = {_key(each): each for each in map(_storage, tensors) if each.device.type == device.type and each.nbytes()}
    for each in map(_storage, without):
        found.pop(_key(each), None)
    return list(found.values())


def bytes_of(storage: UntypedStorage) -> Tensor:
    """[nbytes] uint8 over the whole storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class HostBuffer:
    """Host memory of one resource, kept from one offload to the next.

    In chunks of a power of two, since torch rounds pinned allocations up to one. What is offloaded lies in it end to
    end, split where a chunk ends.
    """

    def __init__(self, *, pinned: bool, chunk_bytes: int = 1 << 28) -> None:
        self._pinned, self._chunk_bytes = pinned, chunk_bytes
        self._chunks: list[Tensor] = []

    @property
    def nbytes(self) -> int:
        """Allocated so far."""
        return sum(each.numel() for each in self._chunks)

    def pieces(self, sizes: Sequence[int]) -> Iterator[tuple[int, slice, Tensor]]:
        """Number of the storage, bytes of it, and the host memory for them, for storages of `sizes` bytes."""
        self._reserve(sum(sizes))
        chunk, used = 0, 0
        for number, size in enumerate(sizes):
            done = 0
            while done < size:
                room = self._chunks[chunk]
                count = min(size - done, room.numel() - used)
                yield number, slice(done, done + count), room[used : used + count]
                done, used = done + count, used + count
                if used == room.numel():
                    chunk, used = chunk + 1, 0

    def _reserve(self, wanted: int) -> None:
        while (missing := wanted - self.nbytes) > 0:
            size = min(self._chunk_bytes, 1 << (missing - 1).bit_length())
            self._chunks.append(torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned))


def _storage(tensor: Tensor) -> UntypedStorage:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()


def _key(storage: UntypedStorage) -> int:
    address: int = storage._cdata  # noqa: SLF001 (unique while the storage is held)
    return address
