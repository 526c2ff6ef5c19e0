"""Between processes on devices of their own: buckets broadcast in a process group of the sender and all engine ranks.

NCCL on GPUs, gloo on CPUs. The group lies beside whatever group a process is in already. One bucket travels while the
sender fills the next and receivers take the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from grpo.refit.deadline import Deadline
from grpo.refit.errors import PeerLostError
from grpo.refit.manifest import Bucket, Manifest
from grpo.refit.transport import Filled
from grpo.tcp_store import open_store, release_port, reserve_port

SLOTS = 2


@dataclass(frozen=True)
class BroadcastHello:
    """Where the sender, rank 0 of the group, waits for receivers, ranks 1 to `world_size` - 1."""

    address: str
    port: int
    world_size: int


class BroadcastSender:
    """`Sender`, rank 0."""

    def __init__(self, manifest: Manifest, *, address: str, receivers: int, on_gpu: bool, deadline_s: float) -> None:
        self._manifest, self._on_gpu, self._deadline_s = manifest, on_gpu, deadline_s
        self.hello = BroadcastHello(address, reserve_port(address), receivers + 1)
        self._joined: _Link | None = None

    def join(self) -> None:
        """Wait for the receivers. Raises PeerLostError."""
        self._joined = _Link(
            self._manifest, self.hello, 0, address=self.hello.address, on_gpu=self._on_gpu, deadline_s=self._deadline_s
        )

    def begin(self) -> None:
        """As `Sender.begin`."""
        self._link.deadline.begin()

    def free(self, bucket: Bucket) -> Filled:
        """As `Sender.free`."""
        self._link.await_done(bucket.index - SLOTS)
        return self._link.filled(bucket)

    def publish(self, bucket: Bucket) -> None:
        """As `Sender.publish`."""
        self._link.start(bucket)

    def finish(self) -> None:
        """As `Sender.finish`."""
        for bucket in self._manifest.buckets[-SLOTS:]:
            self._link.await_done(bucket.index)

    def close(self) -> None:
        """As `Sender.close`."""
        if self._joined is None:
            release_port(self.hello.port)
        else:
            self._joined.close()

    @property
    def _link(self) -> _Link:
        assert self._joined is not None, "a refit before it was joined"
        return self._joined


class BroadcastReceiver:
    """`Receiver`, rank `number` + 1."""

    def __init__(
        self, manifest: Manifest, hello: BroadcastHello, number: int, *, address: str, on_gpu: bool, deadline_s: float
    ) -> None:
        """Join. `address` is this process's own. Raises PeerLostError."""
        self._buckets = manifest.buckets
        self._link = _Link(manifest, hello, number + 1, address=address, on_gpu=on_gpu, deadline_s=deadline_s)

    def begin(self) -> None:
        """As `Receiver.begin`."""
        self._link.deadline.begin()

    def take(self, bucket: Bucket) -> Filled:
        """As `Receiver.take`; the next one is on its way then."""
        if bucket.index == 0:
            self._link.start(bucket)
        if bucket.index + 1 < len(self._buckets):
            self._link.start(self._buckets[bucket.index + 1])
        self._link.await_done(bucket.index)
        return self._link.filled(bucket)

    def release(self, bucket: Bucket) -> None:
        """As `Receiver.release`: what arrives in its place is asked for after this, and waits for the device."""

    def finish(self) -> None:
        """As `Receiver.finish`."""
        self._link.wait()

    def close(self) -> None:
        """As `Receiver.close`."""
        self._link.close()


class _Link:
    """One rank: the group, its buckets' memory, and what is under way."""

    def __init__(
        self, manifest: Manifest, hello: BroadcastHello, rank: int, *, address: str, on_gpu: bool, deadline_s: float
    ) -> None:
        self.deadline, self._on_gpu = Deadline(deadline_s), on_gpu
        self._works: dict[int, Any] = {}
        self._filled: dict[int, Filled] = {}
        device = "cuda" if on_gpu else "cpu"
        self._flats = [torch.empty(manifest.largest, dtype=torch.uint8, device=device) for _ in range(SLOTS)]
        try:
            self._group: Any = _group(hello, rank, address, on_gpu=on_gpu, deadline_s=deadline_s)
            self._broadcast(torch.zeros(1, dtype=torch.int64, device=device)).wait()  # NCCL connects with the first
        except (RuntimeError, dist.DistError) as error:
            raise PeerLostError(f"rank {rank} of a refit's process group: {error}") from error

    def filled(self, bucket: Bucket) -> Filled:
        if bucket.index not in self._filled:
            flat = self._flats[bucket.index % SLOTS][: bucket.nbytes]
            self._filled[bucket.index] = Filled(flat, bucket.views(flat))
        return self._filled[bucket.index]

    def start(self, bucket: Bucket) -> None:
        """After the current stream's work so far."""
        try:
            self._works[bucket.index] = self._broadcast(self.filled(bucket).flat)
        except RuntimeError as error:
            raise self._lost(error) from error

    def await_done(self, index: int) -> None:
        """The current stream's work from now on comes after it; on a CPU, wait for it."""
        work = self._works.pop(index, None)
        try:
            if work is not None:
                work.wait()
        except RuntimeError as error:
            raise self._lost(error) from error

    def wait(self) -> None:
        """Until the device has done what it was told on the current stream."""
        if self._on_gpu:
            torch.cuda.current_stream().synchronize()

    def close(self) -> None:
        self._group.abort()

    def _broadcast(self, tensor: torch.Tensor) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = timedelta(seconds=self.deadline.left_s)
        return self._group.broadcast([tensor], options)

    def _lost(self, error: RuntimeError) -> PeerLostError:
        return PeerLostError(f"a broadcast of weights failed: {error}")


def _group(hello: BroadcastHello, rank: int, address: str, *, on_gpu: bool, deadline_s: float) -> Any:
    timeout = timedelta(seconds=deadline_s)
    store = open_store(hello.address, hello.port, rank, hello.world_size, timeout)
    options: Any
    if on_gpu:
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timeout  # noqa: SLF001 - the constructor has no argument for it
        return ProcessGroupNCCL(store, rank, hello.world_size, options)
    from torch import distributed

    gloo: Any = distributed.ProcessGroupGloo
    options = gloo._Options()  # noqa: SLF001 - no public way to bind to one address
    options._timeout = timeout  # noqa: SLF001
    options._devices = [gloo.create_device(hostname=address)]  # noqa: SLF001
    return gloo(store, rank, hello.world_size, options)
