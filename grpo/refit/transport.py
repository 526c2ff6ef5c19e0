"""How weights get into buckets on one side and out of them on the other, whatever carries the buckets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from torch import Tensor

from grpo.refit.checksum import Checks, Checksums
from grpo.refit.errors import RefitError
from grpo.refit.manifest import Bucket, Manifest
from grpo.refit.writing import Places

Write = Callable[[Iterable[Places]], Iterator[None]]  # `StatefulPolicy.write_weights`


@dataclass(frozen=True)
class Filled:
    """A bucket's memory."""

    flat: Tensor  # [bucket.nbytes] uint8
    tensors: Sequence[Tensor]  # views of it, one a weight of the bucket


class Sender(Protocol):
    """Takes buckets, in the order of the manifest."""

    def begin(self) -> None:
        """A refit starts, and with it its deadline."""
        ...

    def free(self, bucket: Bucket) -> Filled:
        """Memory to fill; waits until all receivers are done with what was in it."""
        ...

    def publish(self, bucket: Bucket) -> None:
        """It is filled, as far as the current stream goes: let it travel."""
        ...

    def finish(self) -> None:
        """Wait until this side's part of the last bucket is done."""
        ...

    def close(self) -> None:
        """Give everything back; a receiver that still waits is told."""
        ...


class Receiver(Protocol):
    """Gives buckets, in the order of the manifest."""

    def begin(self) -> None:
        """As `Sender.begin`."""
        ...

    def take(self, bucket: Bucket) -> Filled:
        """Its content, as far as the current stream goes; waits for it."""
        ...

    def release(self, bucket: Bucket) -> None:
        """It is not needed any more, as far as the current stream goes."""
        ...

    def finish(self) -> None:
        """Wait until the device has done what it was told on the current stream, with the last bucket too."""
        ...

    def close(self) -> None:
        """Give everything back; a sender that still waits is told."""
        ...


@dataclass(frozen=True)
class Sent:
    """What a policy rank has sent."""

    version: int
    nbytes: int  # to each receiver
    messages: int
    checksums: dict[int, int]  # by bucket, those that were to be checked
    export_s: float  # making tensors and filling buckets
    wait_s: float  # for receivers


@dataclass(frozen=True)
class Received:
    """What an engine rank has taken."""

    version: int
    names: int
    nbytes: int
    messages: int
    checksums: dict[int, int]
    wait_s: float  # for the next bucket
    load_s: float  # in which the engine took what was there


def send(write: Write, manifest: Manifest, sender: Sender, *, version: int, checks: Checks) -> Sent:
    """Have the buckets filled, and send each.

    Raises:
        RefitError: the weights are not those of the manifest.
        PeerLostError: a receiver has gone or does not take what was sent in time.
    """
    sums = Checksums(checks, len(manifest.buckets), version)
    memory = _Memory(manifest, sender)
    sender.begin()
    started = perf_counter()
    try:
        for _ in write(memory):
            bucket, filled = memory.next_filled()
            sums.add(bucket.index, filled.flat)
            sender.publish(bucket)
        memory.check_end()
        with memory.waiting():
            sender.finish()
        values = sums.values()
    except BaseException:
        sender.close()
        raise
    spent, waited = perf_counter() - started, memory.waited_s
    return Sent(version, manifest.nbytes, len(manifest.buckets), values, spent - waited, waited)


class _Memory:
    """The places of all buckets, as they are free; then which of them are full."""

    def __init__(self, manifest: Manifest, sender: Sender) -> None:
        self._manifest, self._sender = manifest, sender
        self._given: deque[tuple[Bucket, Filled]] = deque()
        self._filled = 0
        self.waited_s = 0.0

    def __iter__(self) -> Iterator[Places]:
        for bucket in self._manifest.buckets:
            with self.waiting():
                free = self._sender.free(bucket)
            self._given.append((bucket, free))
            yield list(zip(bucket.weights, free.tensors, strict=True))

    def next_filled(self) -> tuple[Bucket, Filled]:
        self._filled += 1
        return self._given.popleft()

    def check_end(self) -> None:
        wanted = len(self._manifest.buckets)
        if self._filled != wanted:
            raise RefitError(f"the policy filled {self._filled} of {wanted} buckets and went on")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        asked = perf_counter()
        yield
        self.waited_s += perf_counter() - asked


class Incoming:
    """The weights of one refit, to be iterated once; then `received` says what came.

    A tensor holds its values until the next one is asked for.
    """

    def __init__(self, manifest: Manifest, receiver: Receiver, *, version: int, checks: Checks) -> None:
        self._manifest, self._receiver, self._version = manifest, receiver, version
        self._sums = Checksums(checks, len(manifest.buckets), version)
        self._names = self._nbytes = self._messages = 0
        self._wait_s = 0.0
        receiver.begin()
        self._started = perf_counter()

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for bucket in self._manifest.buckets:
            asked = perf_counter()
            filled = self._receiver.take(bucket)
            self._wait_s += perf_counter() - asked
            self._sums.add(bucket.index, filled.flat)
            self._nbytes += bucket.nbytes
            self._messages += 1
            for weight, tensor in zip(bucket.weights, filled.tensors, strict=True):
                self._names += 1
                yield weight.name, tensor
            self._receiver.release(bucket)

    def received(self) -> Received:
        """Wait for the device; then what has come.

        Raises:
            RefitError: the engine did not take all weights.
        """
        if self._names != len(self._manifest.weights):
            raise RefitError(f"the engine took {self._names} of {len(self._manifest.weights)} weights and went on")
        self._receiver.finish()
        spent = perf_counter() - self._started
        return Received(
            self._version, self._names, self._nbytes, self._messages, self._sums.values(), self._wait_s,
            spent - self._wait_s,
        )  # fmt: skip


def check_arrival(manifest: Manifest, sent: Sent, received: Received, *, engine: str) -> None:
    """Hold an engine rank's acknowledgement against what was sent to it.

    Raises:
        RefitError: version, names, bytes or a checksum differ; the first bucket that does is named.
    """
    for what, ours, theirs in (
        ("version", sent.version, received.version),
        ("weights", len(manifest.weights), received.names),
        ("bytes", sent.nbytes, received.nbytes),
        ("messages", sent.messages, received.messages),
        ("checksums", sorted(sent.checksums), sorted(received.checksums)),
    ):
        if ours != theirs:
            raise RefitError(f"refit to version {sent.version}: {what} sent {ours}, acknowledged by {engine}: {theirs}")
    for index, value in sent.checksums.items():
        if received.checksums[index] != value:
            bucket = manifest.buckets[index]
            raise RefitError(
                f"refit to version {sent.version}: bucket {index} (of {len(manifest.buckets)}; its first tensor is "
                f"{bucket.weights[0]}) arrived at {engine} altered: checksum {received.checksums[index]} instead of "
                f"{value}"
            )
