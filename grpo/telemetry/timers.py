"""Where the seconds of a step go: every second belongs to exactly one phase, and what no phase claims is `other`."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

Phase = Literal[
    "data", "refit", "generation", "rewards", "advantages", "logprobs", "policy_training", "validation", "checkpoint"
]
PHASES: tuple[Phase, ...] = get_args(Phase)


class Charge(NamedTuple):
    """Seconds spent between two phases for the sake of one of them."""

    phase: Phase
    part: str
    seconds: float


class PhaseTimer:
    """Times the phases of one step after another.

    with timer.step() as times:
        with timer.phase("refit"):
            with timer.part("transfer"):
                ...
    times["timing/refit/transfer"]

    The mapping is filled when the step is left, by an exception too: `timing/total`, `timing/<phase>` for every phase
    (0.0 where it was not entered), `timing/<phase>/<part>`, and `timing/other` = total - sum of the phases; seconds.
    Phases do not nest, nor do parts; both may be entered several times a step and add up. Breaking that order is a
    fault of the caller and raises RuntimeError.

    `synchronise` (for example `torch.cuda.synchronize`) is called before each reading, so that queued device work
    counts where it was asked for. `entering` is called with each phase before its time begins: it makes ready what the
    phase needs, and says which phase each of its own seconds belongs to.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.perf_counter,
        synchronise: Callable[[], None] | None = None,
        entering: Callable[[Phase], Iterable[Charge]] | None = None,
    ) -> None:
        self._clock = clock
        self._synchronise = synchronise
        self.entering = entering
        self._in_step = False
        self._phase: Phase | None = None
        self._part: str | None = None
        self._seconds: dict[str, float] = {}

    @property
    def current_phase(self) -> Phase | None:
        """The phase being timed now, for messages about failures; after an exception, None."""
        return self._phase

    @contextmanager
    def step(self) -> Iterator[dict[str, float]]:
        if self._in_step:
            raise RuntimeError("a step is already being timed")
        self._in_step = True
        self._seconds = {f"timing/{phase}": 0.0 for phase in PHASES}
        times: dict[str, float] = {}
        started = self._now()
        try:
            yield times
        finally:
            total = self._now() - started
            self._in_step = False
            claimed = sum(self._seconds[f"timing/{phase}"] for phase in PHASES)
            times.update({"timing/total": total, **self._seconds, "timing/other": total - claimed})

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        if name not in PHASES:
            raise ValueError(f"unknown phase {name!r}; phases: {', '.join(PHASES)}")
        if not self._in_step:
            raise RuntimeError(f"phase {name!r} outside a step")
        if self._phase is not None:
            raise RuntimeError(f"phase {name!r} inside phase {self._phase!r}: a second would count twice")
        if self.entering is not None:
            for charge in self.entering(name):
                self._charge(charge)
        self._phase = name
        started = self._now()
        try:
            yield
        finally:
            self._phase = None
            self._seconds[f"timing/{name}"] += self._now() - started

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if self._part is not None:
            raise RuntimeError(f"part {name!r} inside part {self._part!r}: a second would count twice")
        key = self._part_key(name)
        self._part = name
        started = self._now()
        try:
            yield
        finally:
            self._part = None
            self._seconds[key] = self._seconds.get(key, 0.0) + self._now() - started

    def add_part(self, name: str, seconds: float) -> None:
        """A part of the current phase that was measured elsewhere, for example in a worker."""
        key = self._part_key(name)
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def _charge(self, charge: Charge) -> None:
        for key in (f"timing/{charge.phase}", f"timing/{charge.phase}/{charge.part}"):
            self._seconds[key] = self._seconds.get(key, 0.0) + charge.seconds

    def _part_key(self, name: str) -> str:
        if self._phase is None:
            raise RuntimeError(f"part {name!r} outside a phase")
        return f"timing/{self._phase}/{name}"

    def _now(self) -> float:
        if self._synchronise is not None:
            self._synchronise()
        return self._clock()
