"""The checkpoints of a run as its loop has them: begun, told of, and failed in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from grpo.checkpoint.saver import SaveReport
from grpo.checkpoint.stored import StoredTensors
from grpo.errors import GrpoError
from grpo.trainer.parts import Parts

_SOURCE = "source/"


class Saves:
    """Saves what the parts have; nothing where checkpoints are turned off, but for `save`, which is then a fault."""

    def __init__(self, parts: Parts, took: Callable[[float], None]) -> None:
        """`took` is given the seconds of every save that is on the disk, those of moves before it not among them."""
        self._parts = parts
        self._took = took
        self._failed: Exception | None = None
        self.step: int | None = None  # which was saved last, or loaded

    @property
    def enabled(self) -> bool:
        return self._parts.saver is not None

    def on_failure(self, action: Callable[[], None]) -> None:
        """Call it, on a thread of its own, as soon as a save in the background has failed."""
        if self._parts.saver is not None:
            self._parts.saver.on_failure = action

    def prepare(self) -> None:
        """After an update, so that the first save finds memory to copy to."""
        if self._parts.saver is not None:
            self._parts.saver.prepare()

    def save(self, step: int, metrics: Mapping[str, float], progress: Mapping[str, Any]) -> None:
        """In the phase checkpoint. Raises CheckpointError, also what an earlier save in the background raised."""
        saver, timer = self._parts.saver, self._parts.timer
        assert saver is not None
        self._parts.before_save()
        began = time.perf_counter()
        with timer.phase("checkpoint"):
            moved_seconds = time.perf_counter() - began
            with timer.part("waiting"):
                self._tell(saver.wait())
            with timer.part("staging"):
                tensors, source = self._parts.source.state()
                named = {f"{_SOURCE}{name}": each for name, each in tensors.items()}
                saver.stage(named, {"source": source, "trainer": progress})
            with timer.part("writing"):
                self._tell(saver.write(step, metrics, moved_seconds=moved_seconds))
        self.step = step

    def check(self) -> None:
        """Tell of a save that has ended in the background. Raises what it raised, again if it is asked again."""
        if self._failed is not None:
            raise self._failed
        if self._parts.saver is not None:
            try:
                self._tell(self._parts.saver.poll())
            except Exception as error:
                self._failed = error
                raise

    def wait(self) -> None:
        """Until no save is under way. Raises what it raised."""
        if self._parts.saver is not None:
            self._tell(self._parts.saver.wait())

    def wait_after(self, error: Exception) -> None:
        """What was saved before the error is of use; that it could not be saved is not what is to be raised."""
        try:
            self.wait()
        except GrpoError as other:
            error.add_note(f"and a save that was under way failed: {other}")

    def _tell(self, reports: Sequence[SaveReport]) -> None:
        for report in reports:
            self._took(report.staged_seconds + report.saved.seconds)
            self._parts.run.write_event("checkpoint", **report.event())
            self._parts.say(report.text())


def source_tensors(tensors: StoredTensors) -> dict[str, Tensor]:
    """Of the source of rollouts, in a checkpoint that `Saves` made."""
    return {name.removeprefix(_SOURCE): tensors[name][...] for name in tensors if name.startswith(_SOURCE)}
