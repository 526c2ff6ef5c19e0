"""What it costs to ask workers: calls and seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter


@dataclass
class Dispatch:
    """One call of one or all ranks, while it lasts."""

    rank_seconds: Sequence[float] = ()  # of each rank that was asked, inside its own process


@dataclass
class Dispatches:
    """Counts calls; `take` gives what came together since it was asked last."""

    _count: int = field(default=0, init=False)
    _seconds: float = field(default=0.0, init=False)
    _overhead_seconds: float = field(default=0.0, init=False)
    _of_ranks: dict[str, list[float]] = field(default_factory=dict, init=False)

    @contextmanager
    def count(self, method: str) -> Iterator[Dispatch]:
        """A call that ends with the block; the block says how long the workers worked."""
        dispatch, started = Dispatch(), perf_counter()
        try:
            yield dispatch
        finally:
            waited = perf_counter() - started
            self._count += 1
            self._seconds += waited
            # Work that had begun before it was waited for hides the overhead of its own call, of no other.
            self._overhead_seconds += max(0.0, waited - max(dispatch.rank_seconds, default=0.0))
            if dispatch.rank_seconds:
                before = self._of_ranks.get(method, [0.0] * len(dispatch.rank_seconds))
                self._of_ranks[method] = [sum(each) for each in zip(before, dispatch.rank_seconds, strict=False)]

    def take(self) -> dict[str, float]:
        """`dispatches`, `dispatch_seconds` waited for them, and `dispatch_overhead_seconds`: less the workers' work."""
        values = {
            "dispatches": float(self._count),
            "dispatch_seconds": self._seconds,
            "dispatch_overhead_seconds": self._overhead_seconds,
        }
        self._count, self._seconds, self._overhead_seconds = 0, 0.0, 0.0
        return values

    def take_ranks(self) -> dict[str, list[float]]:
        """By method the seconds that each rank worked, since this was asked last."""
        taken, self._of_ranks = self._of_ranks, {}
        return taken
