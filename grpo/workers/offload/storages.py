"""The storages behind tensors. A storage that is emptied and filled again keeps every view of it: FSDP's and Megatron's
flat buffers, tied weights, what an optimizer holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor

from grpo import host_memory

_THREADS = 16  # that make host memory: zeroing and locking its pages takes many times the copy into it


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

    What is offloaded lies in its chunks end to end, split where one ends. Chunks are made several at a time.
    """

    def __init__(self, *, pinned: bool, chunk_bytes: int = 1 << 28) -> None:
        """`pinned`: page-locked for the current GPU."""
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
        """Raises RuntimeError if the memory cannot be page-locked."""
        missing = wanted - self.nbytes
        if missing <= 0:
            return
        sizes = [min(self._chunk_bytes, missing - start) for start in range(0, missing, self._chunk_bytes)]
        device = torch.cuda.current_device() if self._pinned else None
        with ThreadPoolExecutor(min(_THREADS, len(sizes), os.cpu_count() or 1), "offload-memory") as pool:
            self._chunks += pool.map(lambda size: host_memory.filled(size, device), sizes)


def _storage(tensor: Tensor) -> UntypedStorage:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()


def _key(storage: UntypedStorage) -> int:
    address: int = storage._cdata  # noqa: SLF001 (unique while the storage is held)
    return address
