"""What it costs to ask workers: calls and seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter


@dataclass
class Dispatch:
    """One call of one or all ranks, while it lasts."""

    work_seconds: float = 0.0  # of the slowest rank, inside its own process


@dataclass
class Dispatches:
    """Counts calls; `take` gives what came together since it was asked last."""

    _count: int = field(default=0, init=False)
    _seconds: float = field(default=0.0, init=False)
    _work_seconds: float = field(default=0.0, init=False)

    @contextmanager
    def count(self) -> Iterator[Dispatch]:
        """A call that ends with the block; the block says how long the workers worked."""
        dispatch, started = Dispatch(), perf_counter()
        try:
            yield dispatch
        finally:
            self._count += 1
            self._seconds += perf_counter() - started
            self._work_seconds += dispatch.work_seconds

    def take(self) -> dict[str, float]:
        """`dispatches`, `dispatch_seconds` waited for them, and `dispatch_overhead_seconds`: less the workers' work."""
        values = {
            "dispatches": float(self._count),
            "dispatch_seconds": self._seconds,
            "dispatch_overhead_seconds": max(0.0, self._seconds - self._work_seconds),
        }
        self._count, self._seconds, self._work_seconds = 0, 0.0, 0.0
        return values
