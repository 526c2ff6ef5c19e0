"""What a rank of the policy and a rank of the engine are asked in a refit, in the processes where they live."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from grpo.refit.broadcast import BroadcastHello, BroadcastReceiver, BroadcastSender
from grpo.refit.checksum import Checks
from grpo.refit.manifest import Manifest, Weight
from grpo.refit.plan import Place, Transport
from grpo.refit.shared import SharedHello, SharedReceiver, SharedSender
from grpo.refit.transport import Incoming, Received, Receiver, Sent, send
from grpo.refit.unheard import Unheard
from grpo.refit.writing import Places
from grpo.workers.generation.expected_weights import ExpectedWeights

Hello = SharedHello | BroadcastHello


@dataclass(frozen=True)
class Settings:
    """Of a run, the same on both sides."""

    bucket_bytes: int
    checks: Checks
    deadline_s: float
    on_gpu: bool


class Exporter(Protocol):
    """What a refit needs of the policy, on each of its ranks."""

    def describe_weights(self) -> list[Weight]:
        """What `write_weights` will write, in its order, without making it."""
        ...

    def write_weights(self, buckets: Iterable[Places]) -> Iterator[None]:
        """As `StatefulPolicy.write_weights`: all ranks take part in every bucket."""
        ...


class RefitSource:
    """One rank of the policy."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self._sender: SharedSender | BroadcastSender | Unheard | None = None

    def refit_describe(self, settings: Settings) -> tuple[Manifest, Place]:
        """What this rank would export, and where it is."""
        self._settings = settings
        self._manifest = Manifest.of(self._exporter.describe_weights(), settings.bucket_bytes)
        return self._manifest, Place.here(on_gpu=settings.on_gpu)

    def refit_open(self, transport: Transport, receivers: int, address: str) -> list[Hello]:
        """Make ready for so many receivers; what each needs to join."""
        self.refit_close()
        settings = self._settings
        if not receivers:
            self._sender = Unheard(self._manifest, on_gpu=settings.on_gpu)
            return []
        if transport == "shared":
            shared = SharedSender(
                self._manifest, receivers=receivers, on_gpu=settings.on_gpu, deadline_s=settings.deadline_s
            )
            self._sender = shared
            return list(shared.hellos())
        sender = BroadcastSender(
            self._manifest, address=address, receivers=receivers, on_gpu=settings.on_gpu,
            deadline_s=settings.deadline_s,
        )  # fmt: skip
        self._sender = sender
        return [sender.hello] * receivers

    def refit_join(self) -> None:
        """Wait for the receivers, who are told to join at the same time. Raises PeerLostError."""
        self._open.join()

    def refit_send(self, version: int) -> Sent | None:
        """Send the weights, or take part in their making; what was sent to anyone.

        Raises:
            RefitError: the policy exports something else than it has described.
            PeerLostError: a receiver has gone, has given up, or does not take them in time.
        """
        heard = not isinstance(self._open, Unheard)
        checks = self._settings.checks if heard else "off"
        sent = send(self._exporter.write_weights, self._manifest, self._open, version=version, checks=checks)
        return sent if heard else None

    def refit_close(self) -> None:
        """Give memory and connections back: for a process that goes on after the run."""
        if self._sender is not None:
            self._sender.close()
        self._sender = None

    @property
    def _open(self) -> SharedSender | BroadcastSender | Unheard:
        assert self._sender is not None, "a refit before refit_open"
        return self._sender


class RefitTarget:
    """One rank of the engine."""

    def __init__(
        self,
        update: Callable[[Iterator[tuple[str, Tensor]], int], None],
        expected: ExpectedWeights,
        dtype: str,
        name: str,
    ) -> None:
        """Args: `update` is as `Generator.update_weights`; `dtype` is what the engine computes in."""
        self._update, self._expected, self._dtype, self._name = update, expected, dtype, name
        self._receiver: Receiver | None = None

    def refit_accept(self, manifest: Manifest, settings: Settings) -> Place:
        """Agree to what will be sent; where this rank is. Raises RefitError."""
        manifest.check(self._expected, self._dtype, engine=self._name)
        self._manifest, self._settings = manifest, settings
        return Place.here(on_gpu=settings.on_gpu)

    def refit_join(self, hello: Hello, number: int, address: str) -> None:
        """Join the sender, which waits, as its receiver of that number. Raises PeerLostError."""
        self.refit_close()
        deadline_s, on_gpu = self._settings.deadline_s, self._settings.on_gpu
        if isinstance(hello, SharedHello):
            self._receiver = SharedReceiver(self._manifest, hello, number, deadline_s=deadline_s)
        else:
            self._receiver = BroadcastReceiver(
                self._manifest, hello, number, address=address, on_gpu=on_gpu, deadline_s=deadline_s
            )

    def refit_receive(self, version: int) -> Received:
        """Take the weights.

        Raises:
            RefitError: the engine left some.
            PeerLostError: the sender has gone, has given up, or does not send in time.
            GenerationError: as the engine raises it.
        """
        assert self._receiver is not None, "a refit before refit_join"
        incoming = Incoming(self._manifest, self._receiver, version=version, checks=self._settings.checks)
        try:
            self._update(iter(incoming), version)
            return incoming.received()
        except BaseException:
            self.refit_close()
            raise

    def refit_close(self) -> None:
        """As `RefitSource.refit_close`."""
        if self._receiver is not None:
            self._receiver.close()
        self._receiver = None
