"""Between processes of one machine that share their device: buckets in memory that both see.

On a GPU that is CUDA IPC, on a CPU shared memory. The sender fills one of two slots while receivers take the other;
who may go on is told through sockets, so that the end of a process is known at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grpo.refit.channel import Channel, Listener
from grpo.refit.deadline import Deadline
from grpo.refit.manifest import Bucket, Manifest
from grpo.refit.slots import COUNT, CudaSlots, HostSlots
from grpo.refit.transport import Filled


@dataclass(frozen=True)
class SharedHello:
    """What a receiver needs to join."""

    name: str  # of the sender's listener
    handles: tuple[list[Any], list[bytes]] | None  # of memory and events of a GPU


class SharedSender:
    """`Sender` to the processes that have joined."""

    def __init__(self, manifest: Manifest, *, receivers: int, on_gpu: bool, deadline_s: float) -> None:
        self._receivers = receivers
        self._slots = CudaSlots.create(manifest.largest) if on_gpu else HostSlots.create(manifest.largest)
        self._views = _Views(self._slots.flat)
        self._deadline = Deadline(deadline_s)
        self._listener = Listener(self._deadline)
        self._channels: list[Channel] = []
        self._released: list[int] = []  # buckets of this refit, by receiver
        self._published = 0

    def hellos(self) -> list[SharedHello]:
        """For each receiver."""
        slots = self._slots
        given = [slots.handles() if isinstance(slots, CudaSlots) else None for _ in range(self._receivers)]
        return [SharedHello(self._listener.name, each) for each in given]

    def join(self) -> None:
        """Wait for the receivers. Raises PeerLostError."""
        self._deadline.begin()
        self._channels = self._listener.accept(self._receivers)
        self._listener.close()
        for channel in self._channels:
            self._slots.offer(channel)

    def begin(self) -> None:
        """As `Sender.begin`."""
        self._deadline.begin()
        self._released, self._published = [0] * self._receivers, 0

    def free(self, bucket: Bucket) -> Filled:
        """As `Sender.free`."""
        self._await_released(bucket.index - COUNT + 1)
        self._slots.before_filling(bucket.index % COUNT)
        return self._views.of(bucket)

    def publish(self, bucket: Bucket) -> None:
        """As `Sender.publish`."""
        self._slots.after_filling(bucket.index % COUNT)
        for channel in self._channels:
            channel.send(bucket.index)
        self._published = bucket.index + 1

    def finish(self) -> None:
        """As `Sender.finish`."""
        self._await_released(self._published)

    def close(self) -> None:
        """As `Sender.close`."""
        self._listener.close()
        for channel in self._channels:
            channel.close()
        self._slots.close()

    def _await_released(self, count: int) -> None:
        for number, channel in enumerate(self._channels):
            while self._released[number] < count:
                channel.expect(self._released[number])
                self._released[number] += 1


class SharedReceiver:
    """`Receiver` in another process than the sender's."""

    def __init__(self, manifest: Manifest, hello: SharedHello, number: int, *, deadline_s: float) -> None:
        """Join as the receiver of that number. Raises PeerLostError."""
        self._deadline = Deadline(deadline_s)
        self._channel = Channel.connect(hello.name, number, self._deadline)
        self._slots: HostSlots | CudaSlots
        if hello.handles is None:
            self._slots = HostSlots.attach(self._channel, manifest.largest)
        else:
            self._slots = CudaSlots.attach(self._channel, hello.handles)
        self._views = _Views(self._slots.flat)

    def begin(self) -> None:
        """As `Receiver.begin`."""
        self._deadline.begin()

    def take(self, bucket: Bucket) -> Filled:
        """As `Receiver.take`."""
        self._channel.expect(bucket.index)
        self._slots.before_taking(bucket.index % COUNT)
        return self._views.of(bucket)

    def release(self, bucket: Bucket) -> None:
        """As `Receiver.release`."""
        self._slots.after_taking(bucket.index % COUNT)
        self._channel.send(bucket.index)

    def finish(self) -> None:
        """As `Receiver.finish`."""
        self._slots.wait()

    def close(self) -> None:
        """As `Receiver.close`."""
        self._channel.close()
        self._slots.close()


class _Views:
    """The tensors of buckets, each in its slot, made once."""

    def __init__(self, flat: Callable[[int], Tensor]) -> None:
        self._flat = flat
        self._made: dict[int, Filled] = {}

    def of(self, bucket: Bucket) -> Filled:
        if bucket.index not in self._made:
            flat = self._flat(bucket.index % COUNT)[: bucket.nbytes]
            self._made[bucket.index] = Filled(flat, bucket.views(flat))
        return self._made[bucket.index]
