"""When a run must stop so that what it has done is saved in time, and what it tells its scheduler."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from grpo.checkpoint.signals import Abandoned, StopRequest
from grpo.config.schema.run import Checkpointing
from grpo.errors import EXIT_REQUEUE, CheckpointError
from grpo.telemetry.journal import read_journal

MUST_SAVE_BY = "checkpointing.checkpoint_must_save_by"
_EXIT_CTRL_C = 130
_PARTS_OF_A_SAVE = ("moved_seconds", "staged_seconds", "seconds")
_SAVE_MARGIN = 1.25  # saves of one run differ: others use the file system as well


def seconds_of(duration: str) -> float:
    """Seconds of "DD:HH:MM:SS"."""
    days, hours, minutes, seconds = map(int, duration.split(":"))
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def exit_code_of(stopped_by: str, *, saved: bool, steps: int) -> int:
    """Of a run that was stopped before its end. Started again, one without a checkpoint would lose its steps."""
    if stopped_by == "SIGINT":
        return _EXIT_CTRL_C
    return EXIT_REQUEUE if saved or steps == 0 else 1


def longest_save_s(run_directory: Path) -> float:
    """What the saves of a run took at most, with the moves and the staging before, by its events; 0: there was none."""
    saves = [event for event in read_journal(run_directory / "events.jsonl") if event["kind"] == "checkpoint"]
    return max((sum(float(each.get(part, 0)) for part in _PARTS_OF_A_SAVE) for each in saves), default=0.0)


class Stopping:
    """Signals and the time limit of one run, against what its steps and saves have taken so far.

    A save is expected to take 1.25 times the longest seen, or, before there was one, as long as the longest step; where
    saves are written in the background, twice that: one may be under way. Before it come the moves of what is saved:
    no more than 1.25 times all the moves of a step, since a rollout that is given up leaves everything where sampling
    needs it.
    """

    def __init__(
        self,
        stop: StopRequest,
        settings: Checkpointing,
        *,
        longest_save_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`longest_save_s`: of the run before it was interrupted."""
        self._stop = stop
        self._limit = settings.checkpoint_must_save_by
        self._deadline = math.inf if self._limit is None else stop.started + seconds_of(self._limit)
        self._grace_s = settings.stop_grace_s
        self._saves = 2 if settings.async_save else 1
        self._clock = clock
        self._longest_save = longest_save_s
        self._longest_step = 0.0
        self._longest_moves = 0.0  # all that placement moves in a step
        self._moves = 0.0
        self._longest_rest = 0.0  # of a step, after its rollout
        self._rollout_left: float | None = None
        self._steps = 0
        self._given_up = False

    def due(self) -> str | None:
        """At a place where the run can be saved: what makes it stop there, if anything does.

        The name of a signal, or of the key of the time limit when one more step and the save after it might not fit.

        Raises:
            CheckpointError: the time limit is over before the first step, so that starting again would go on for ever.
        """
        if self._stop.requested is not None:
            return self._stop.requested
        if not self._given_up and self._clock() + self._longest_step + self._expected_save < self._deadline:
            return None
        if self._steps == 0:
            raise CheckpointError(
                f"{MUST_SAVE_BY}={self._limit}: too little for one step and its save; allow more time"
            )
        return MUST_SAVE_BY

    @contextmanager
    def rollout(self) -> Iterator[None]:
        """Around what a step does before it changes the policy.

        Raises:
            Abandoned: when waiting longer would leave no time for the rest of the step and the save.
        """
        try:
            with self._stop.abandonable(lambda: self._latest_save() - self._longest_rest):
                yield
        except Abandoned:
            self._given_up = True
            raise
        self._rollout_left = self._clock()

    @contextmanager
    def validation(self) -> Iterator[None]:
        """Around a validation. Raises Abandoned when waiting longer would leave no time for the save."""
        try:
            with self._stop.abandonable(self._latest_save):
                yield
        except Abandoned:
            self._given_up = True
            raise

    def undivided(self) -> AbstractContextManager[None]:
        """Around what a rollout or a validation must not leave half done."""
        return self._stop.undivided()

    def step_done(self, seconds: float) -> None:
        """A step is over; `seconds` are all that it took, its validation and save among them."""
        self._steps += 1
        self._longest_step = max(self._longest_step, seconds)
        self._longest_moves, self._moves = max(self._longest_moves, self._moves), 0.0
        if self._rollout_left is not None:
            self._longest_rest = max(self._longest_rest, self._clock() - self._rollout_left)
            self._rollout_left = None

    def moved(self, seconds: float) -> None:
        """Placement has moved something in this step, for so many seconds."""
        self._moves += seconds

    def saved(self, seconds: float) -> None:
        """A checkpoint is on the disk after so many seconds, moves before it not among them."""
        self._longest_save = max(self._longest_save, seconds)

    @property
    def _expected_save(self) -> float:
        if not self._longest_save:
            return self._saves * self._longest_step
        return _SAVE_MARGIN * (self._saves * self._longest_save + self._longest_moves)

    def _latest_save(self) -> float:
        """When the save must begin."""
        asked = self._stop.requested_at
        if asked is not None and self._steps == 0:
            return asked  # there is nothing new to save, and no telling how long a step takes
        killed = math.inf if asked is None else asked + self._grace_s
        return min(killed, self._deadline) - self._expected_save
