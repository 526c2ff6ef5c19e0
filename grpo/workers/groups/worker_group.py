"""Several workers of one class as one thing, and the group of one worker in this process."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

from grpo.errors import WorkerError
from grpo.workers.groups.calls import Call
from grpo.workers.groups.dispatches import Dispatches


class WorkerGroup(Protocol):
    """`world_size` objects, one a rank. Whoever calls does not see where they live."""

    @property
    def world_size(self) -> int: ...

    @property
    def ended(self) -> bool:
        """Whether no calls can be made any more, after `shutdown` or a failure."""
        ...

    @property
    def hosts(self) -> list[str]:
        """The name of each rank's machine."""
        ...

    @property
    def addresses(self) -> list[str]:
        """The address of each rank's machine, for the other ranks."""
        ...

    @property
    def dispatches(self) -> Dispatches:
        """Calls so far."""
        ...

    def call_all(self, method: str, *arguments: object, deadline_s: float | None = None) -> list[Any]:
        """Call a method of every rank with the same arguments; what they return, in rank order."""
        ...

    def call_each(
        self, method: str, arguments: Sequence[tuple[object, ...]], deadline_s: float | None = None
    ) -> list[Any]:
        """Call a method of every rank with arguments of its own, given in rank order."""
        ...

    def call_one(self, rank: int, method: str, *arguments: object, deadline_s: float | None = None) -> Any:
        """Call a method of one rank."""
        ...

    def begin_all(self, method: str, *arguments: object, deadline_s: float | None = None, beside: bool = False) -> Call:
        """As `call_all`, but return at once; `calls.wait` has the answers. Other groups may be asked meanwhile.

        With `beside` it runs on a thread of its own in every rank, and does not wait for other calls.
        """
        ...

    def begin_each(self, method: str, arguments: Sequence[tuple[object, ...]], deadline_s: float | None = None) -> Call:
        """As `call_each`, but return at once; `calls.wait` has the answers. Other groups may be asked meanwhile."""
        ...

    def call_beside(self, method: str, *arguments: object, deadline_s: float | None = None) -> list[Any]:
        """As `call_all`, on a thread of its own in every rank and not counted: other calls may be made meanwhile.

        It may itself be made from another thread. A failure is raised and leaves the group as it is.
        """
        ...

    def shutdown(self) -> None:
        """End all ranks and what was started for them; more than once does no harm."""
        ...


class InProcessGroup:
    """One worker in this process: exceptions pass as they are, a debugger steps into it, deadlines do not apply."""

    def __init__(self, make: Callable[..., object], *arguments: object) -> None:
        self._worker: object | None = make(*arguments)
        self._dispatches = Dispatches()

    @property
    def world_size(self) -> int:
        return 1

    @property
    def ended(self) -> bool:
        """As `WorkerGroup.ended`."""
        return self._worker is None

    @property
    def hosts(self) -> list[str]:
        """As `WorkerGroup.hosts`."""
        return [platform.node()]

    @property
    def addresses(self) -> list[str]:
        """As `WorkerGroup.addresses`: whoever works with this process is on the same machine."""
        return ["127.0.0.1"]

    @property
    def dispatches(self) -> Dispatches:
        return self._dispatches

    def call_all(self, method: str, *arguments: object, deadline_s: float | None = None) -> list[Any]:
        """As `WorkerGroup.call_all`."""
        return [self.call_one(0, method, *arguments, deadline_s=deadline_s)]

    def call_each(
        self, method: str, arguments: Sequence[tuple[object, ...]], deadline_s: float | None = None
    ) -> list[Any]:
        """As `WorkerGroup.call_each`."""
        (own,) = arguments
        return [self.call_one(0, method, *own, deadline_s=deadline_s)]

    def call_one(self, rank: int, method: str, *arguments: object, deadline_s: float | None = None) -> Any:
        """As `WorkerGroup.call_one`."""
        del deadline_s
        assert rank == 0, rank
        if self._worker is None:
            raise WorkerError(f"{method} was called after the worker had ended")
        with self._dispatches.count(method) as dispatch:
            started = perf_counter()
            try:
                return getattr(self._worker, method)(*arguments)
            finally:
                dispatch.rank_seconds = [perf_counter() - started]

    def begin_all(self, method: str, *arguments: object, deadline_s: float | None = None, beside: bool = False) -> Call:
        """As `WorkerGroup.begin_all`, on a thread of its own."""
        del beside
        return Call(self, lambda: self.call_all(method, *arguments, deadline_s=deadline_s))

    def begin_each(self, method: str, arguments: Sequence[tuple[object, ...]], deadline_s: float | None = None) -> Call:
        """As `WorkerGroup.begin_each`, on a thread of its own."""
        return Call(self, lambda: self.call_each(method, arguments, deadline_s))

    def call_beside(self, method: str, *arguments: object, deadline_s: float | None = None) -> list[Any]:
        """As `WorkerGroup.call_beside`, on the thread of the caller."""
        del deadline_s
        worker = self._worker
        if worker is None:
            raise WorkerError(f"{method} was called after the worker had ended")
        return [getattr(worker, method)(*arguments)]

    def shutdown(self) -> None:
        """As `WorkerGroup.shutdown`."""
        self._worker = None
