"""Freeing and filling storages: on a GPU through pinned memory, on a stream of its own; on the CPU not at all."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import UntypedStorage

from grpo.workers.offload.storages import HostBuffer, bytes_of


class DeviceMemory(Protocol):
    """What a worker's storages are moved by. `name` says whose they are: each has host memory of its own."""

    def offload(self, name: str, storages: Sequence[UntypedStorage], *, changed: bool) -> int:
        """Copy to the host and free; the bytes copied. What has not `changed` since the last time is there already."""
        ...

    def onload(self, name: str, storages: Sequence[UntypedStorage]) -> int:
        """Allocate again and copy back; the bytes copied."""
        ...

    def drop(self, name: str, storages: Sequence[UntypedStorage]) -> None:
        """Free; the content is lost."""
        ...

    def remake(self, name: str, storages: Sequence[UntypedStorage]) -> None:
        """Allocate again, without content."""
        ...

    def release(self) -> dict[str, float]:
        """See `MovablePolicy.release`."""
        ...


class Stationary:
    """A CPU computes on the memory that it would be offloaded to: nothing moves."""

    def offload(self, name: str, storages: Sequence[UntypedStorage], *, changed: bool) -> int:
        del name, storages, changed
        return 0

    def onload(self, name: str, storages: Sequence[UntypedStorage]) -> int:
        del name, storages
        return 0

    def drop(self, name: str, storages: Sequence[UntypedStorage]) -> None: ...

    def remake(self, name: str, storages: Sequence[UntypedStorage]) -> None: ...

    def release(self) -> dict[str, float]:
        return {}


class EmptiedStorages:
    """Storages are emptied in place. Every call returns when its copies are done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._hosts: dict[str, HostBuffer] = {}
        self._sizes: dict[str, list[int]] = {}

    def offload(self, name: str, storages: Sequence[UntypedStorage], *, changed: bool) -> int:
        sizes = [each.nbytes() for each in storages]
        if changed:
            host = self._hosts.setdefault(name, HostBuffer(pinned=self._on_gpu))
            views = [bytes_of(each) for each in storages]
            with self._copies() as copying, copying():
                for number, part, memory in host.pieces(sizes):
                    memory.copy_(views[number][part], non_blocking=True)
        self.drop(name, storages)
        return sum(sizes) if changed else 0

    def onload(self, name: str, storages: Sequence[UntypedStorage]) -> int:
        sizes = self._sizes.pop(name)
        pieces = itertools.groupby(self._hosts[name].pieces(sizes), key=lambda piece: piece[0])
        with self._copies() as copying:
            for number, of_storage in pieces:
                # Memory is asked for while what came before is copied, and not within `copying`: it would be its
                # stream's.
                storages[number].resize_(sizes[number])
                view = bytes_of(storages[number])
                with copying():
                    for _, part, memory in of_storage:
                        view[part].copy_(memory, non_blocking=True)
        return sum(sizes)

    def drop(self, name: str, storages: Sequence[UntypedStorage]) -> None:
        self._sizes[name] = [each.nbytes() for each in storages]
        for each in storages:
            each.resize_(0)

    def remake(self, name: str, storages: Sequence[UntypedStorage]) -> None:
        for each, size in zip(storages, self._sizes.pop(name), strict=True):
            each.resize_(size)

    def release(self) -> dict[str, float]:
        if not self._on_gpu:
            return {}
        # The engine's allocator takes from the driver what this one only holds in reserve.
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return {
            "allocated_gib": torch.cuda.memory_allocated(self._device) / 2**30,
            "reserved_gib": torch.cuda.memory_reserved(self._device) / 2**30,
            "driver_gib": (total - free) / 2**30,
        }

    @contextlib.contextmanager
    def _copies(self) -> Iterator[Callable[[], AbstractContextManager[object]]]:
        """Copies within what it gives go after all that the device was asked for before, and are done on leaving."""
        stream = self._stream
        if stream is None:
            yield contextlib.nullcontext
            return
        stream.wait_stream(torch.cuda.current_stream(self._device))
        yield lambda: torch.cuda.stream(stream)
        stream.synchronize()


def memory_of(device: torch.device) -> DeviceMemory:
    """How storages on this device move."""
    return EmptiedStorages(device) if device.type == "cuda" else Stationary()
