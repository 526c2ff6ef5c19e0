"""Memory that two processes of one machine see: the buckets of a shared refit, filled and emptied in turn."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo.refit.channel import Channel

COUNT = 2  # one is filled while the other is taken
_EVENT_BYTES = 64  # of the handle of a CUDA event


class Slots(Protocol):
    """`COUNT` pieces of memory, and the order of device work on both sides of each."""

    def flat(self, slot: int) -> Tensor:
        """[size] uint8."""
        ...

    def before_filling(self, slot: int) -> None:
        """Sender: device work that follows waits until the receivers' is done."""
        ...

    def after_filling(self, slot: int) -> None:
        """Sender: device work so far has filled it."""
        ...

    def before_taking(self, slot: int) -> None:
        """Receiver: device work that follows waits until it is filled."""
        ...

    def after_taking(self, slot: int) -> None:
        """Receiver: device work so far was the last to read it."""
        ...

    def wait(self) -> None:
        """Until the device has done what it was told on the current stream."""
        ...


class HostSlots:
    """In memory of the CPU that has no name: it is gone with the last process that holds it, however that ends."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Takes over `descriptor`, an open file of `COUNT` times `size` bytes."""
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, COUNT * size)
        whole = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._flats = [whole[slot * size : (slot + 1) * size] for slot in range(COUNT)]

    @classmethod
    def create(cls, size: int) -> HostSlots:
        descriptor = os.memfd_create("grpo-refit", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, COUNT * size)
        return cls(descriptor, size)

    def offer(self, channel: Channel) -> None:
        """Let the process at the other end of `channel` attach."""
        channel.send_file(self._descriptor)

    @classmethod
    def attach(cls, channel: Channel, size: int) -> HostSlots:
        """What the other end offers."""
        return cls(channel.receive_file(), size)

    def flat(self, slot: int) -> Tensor:
        """As `Slots.flat`."""
        return self._flats[slot]

    def before_filling(self, slot: int) -> None:
        """The CPU has done what it was told."""

    after_filling = before_taking = after_taking = before_filling

    def wait(self) -> None:
        """As `Slots.wait`: so it has."""

    def close(self) -> None:
        """The memory itself goes when the last tensor in it does; more than once does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class CudaSlots:
    """In memory of a GPU, over CUDA's own handles; events order the two processes' streams without either waiting."""

    def __init__(self, flats: Sequence[Tensor], filled: Sequence[Any], taken: Sequence[Sequence[Any]]) -> None:
        """Args: events by slot; `taken` by receiver and slot."""
        self._flats, self._filled, self._taken = list(flats), list(filled), [list(each) for each in taken]

    @classmethod
    def create(cls, size: int) -> CudaSlots:
        flats = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(COUNT)]
        return cls(flats, [_event() for _ in flats], [])

    def handles(self) -> tuple[list[Any], list[bytes]]:
        """For one receiver: of the memory and of the events."""
        from torch.multiprocessing.reductions import reduce_tensor

        memory = [reduce_tensor(flat)[1] for flat in self._flats]  # type: ignore[no-untyped-call]
        return memory, [bytes(event.ipc_handle()) for event in self._filled]

    def offer(self, channel: Channel) -> None:
        """Take the events of the receiver at the other end of `channel`; it has the handles already."""
        device = torch.cuda.current_device()
        handles = [channel.receive_bytes(_EVENT_BYTES) for _ in range(COUNT)]
        self._taken.append([_event_of(device, each) for each in handles])

    @classmethod
    def attach(cls, channel: Channel, handles: tuple[list[Any], list[bytes]]) -> CudaSlots:
        """What the other end has given the handles of; its GPU is this process's."""
        from torch.multiprocessing.reductions import rebuild_cuda_tensor

        device = torch.cuda.current_device()
        flats = []
        for each in handles[0]:
            arguments = list(each)
            arguments[6] = device  # the sender may number its devices otherwise
            flats.append(rebuild_cuda_tensor(*arguments))  # type: ignore[no-untyped-call]
        taken = [_event() for _ in flats]
        for event in taken:
            channel.send_bytes(bytes(event.ipc_handle()))
        return cls(flats, [_event_of(device, each) for each in handles[1]], [taken])

    def flat(self, slot: int) -> Tensor:
        """As `Slots.flat`."""
        return self._flats[slot]

    def before_filling(self, slot: int) -> None:
        """As `Slots.before_filling`."""
        for events in self._taken:
            torch.cuda.current_stream().wait_event(events[slot])

    def after_filling(self, slot: int) -> None:
        """As `Slots.after_filling`."""
        self._filled[slot].record()

    def before_taking(self, slot: int) -> None:
        """As `Slots.before_taking`."""
        torch.cuda.current_stream().wait_event(self._filled[slot])

    def after_taking(self, slot: int) -> None:
        """As `Slots.after_taking`."""
        (taken,) = self._taken
        taken[slot].record()

    def wait(self) -> None:
        """As `Slots.wait`."""
        torch.cuda.current_stream().synchronize()

    def close(self) -> None:
        """Let the memory go."""
        self._flats.clear()


def _event() -> Any:
    event = torch.cuda.Event(interprocess=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _event_of(device: int, handle: bytes) -> Any:
    """The event of another process."""
    return torch.cuda.Event.from_ipc_handle(device, handle)  # type: ignore[no-untyped-call]
