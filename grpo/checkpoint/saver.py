"""Saving what all processes of a run have: at once, or in the background while training goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo.checkpoint.manager import CheckpointManager, SavedCheckpoint
from grpo.checkpoint.manifest import Shards
from grpo.checkpoint.pieces import whole_pieces
from grpo.checkpoint.rank_state import RankStates, Staged
from grpo.checkpoint.rng import capture_rng
from grpo.checkpoint.shards import ShardPlan, plan_shards, write_shards
from grpo.checkpoint.values import encode_values
from grpo.errors import CheckpointError


@dataclass(frozen=True)
class SaveReport:
    """A checkpoint that is complete on the disk, and what it took."""

    saved: SavedCheckpoint
    staged_seconds: float  # of noting, and in the background copying, the state: for which training is held in any case
    in_background: bool
    moved_seconds: float = 0.0  # of bringing to its place, before that, what is saved

    @property
    def write_rate(self) -> float:
        """Bytes a second."""
        return self.saved.bytes / max(self.saved.write_seconds, 1e-9)

    def text(self) -> str:
        """One line for people."""
        saved, mb = self.saved, 1e6
        return (
            f"checkpoint step {saved.step}: {saved.bytes / mb:.1f} MB, staged {self.staged_seconds:.2f} s, written "
            f"{saved.write_seconds:.2f} s{' in the background' if self.in_background else ''}, "
            f"{self.write_rate / mb:.0f} MB/s"
        )

    def event(self) -> dict[str, Any]:
        """Fields of the event in events.jsonl."""
        saved = self.saved
        return {
            "step": saved.step, "path": str(saved.path), "bytes": saved.bytes, "seconds": saved.seconds,
            "staged_seconds": self.staged_seconds, "write_seconds": saved.write_seconds,
            "moved_seconds": self.moved_seconds,
            "bytes_per_second": self.write_rate, "in_background": self.in_background,
            "removed": [str(path) for path in saved.removed], "problems": list(saved.problems),
        }  # fmt: skip


@dataclass(frozen=True)
class _Content:
    """Everything of one checkpoint, none of which training changes any more."""

    ranks: Staged
    own: ShardPlan
    values: dict[str, Any]
    seconds: float  # that it took to stage


class Saver:
    """The checkpoints of a run over all its ranks. One save at a time: the next waits for the one under way.

    In the background a save holds the caller for the copies alone; a thread has the ranks write them and commits. What
    goes wrong there is raised by the next `poll` or `wait`, and `on_failure` is called, on that thread, as soon as one
    of them would raise.
    """

    def __init__(
        self, manager: CheckpointManager, ranks: RankStates, *, in_background: bool, timeout_s: float = 3600.0
    ) -> None:
        self.manager = manager
        self.in_background = in_background
        self._ranks = ranks
        self.on_failure: Callable[[], None] = lambda: None
        self._timeout_s = timeout_s
        self._prepared = False
        self._content: _Content | None = None
        self._pending: Future[SaveReport] | None = None

    def prepare(self) -> None:
        """After the first update, so that the first save need not make what the others find: once is enough."""
        if self.in_background and not self._prepared:
            self._ranks.prepare()
        self._prepared = True

    def stage(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Take the state of now: that of the ranks, of this process's random generators, and what is given.

        Not while a save is under way: `wait` comes first. Raises CheckpointError naming a value that cannot be saved.
        """
        assert self._pending is None, "wait comes first"
        started = time.perf_counter()
        states, rng_values = capture_rng()
        if self.in_background:
            tensors = {name: each.detach().to("cpu", copy=True) for name, each in tensors.items()}
            values = json.loads(encode_values(dict(values)))
        ranks = self._ranks.stage(copy=self.in_background)
        own = plan_shards(whole_pieces({**tensors, **states}))
        self._content = _Content(
            ranks, own, {**ranks.values, **values, "rng": rng_values}, time.perf_counter() - started
        )

    def write(self, step: int, metrics: Mapping[str, float], *, moved_seconds: float = 0.0) -> list[SaveReport]:
        """Write what was staged: its report, or none yet where it is written in the background.

        `moved_seconds` is for the report. Raises CheckpointError; earlier checkpoints are then as they were.
        """
        assert self._content is not None, "stage comes first"
        content, self._content = self._content, None
        kept = dict(metrics)

        def save() -> SaveReport:
            return self._save(step, content, kept, moved_seconds)

        if not self.in_background:
            return [save()]
        self._pending = _started(save, self.on_failure)
        return []

    def poll(self) -> list[SaveReport]:
        """The report of a save that has ended since; never waits. Raises what it raised."""
        return self.wait() if self._pending is not None and self._pending.done() else []

    def wait(self) -> list[SaveReport]:
        """The report of the save under way, when it has ended. Raises what it raised, and CheckpointError if it does
        not end in time.
        """
        if self._pending is None:
            return []
        try:
            return [self._pending.result(timeout=self._timeout_s)]
        except TimeoutError as error:
            if self._pending.done():
                raise
            raise CheckpointError(
                f"a save into {self.manager.directory} did not end within {self._timeout_s:g} s "
                "(cluster.worker_timeout_s)"
            ) from error
        finally:
            self._pending = None

    def _save(self, step: int, content: _Content, metrics: Mapping[str, float], moved_seconds: float) -> SaveReport:
        def write(folder: Path) -> list[Shards]:
            own = write_shards(folder, content.own, in_background=self.in_background)
            return [own, *self._ranks.write(folder, in_background=self.in_background)]

        total = content.own.tensor_bytes + content.ranks.bytes
        saved = self.manager.save_shards(step, write, total, content.values, metrics)
        return SaveReport(saved, content.seconds, self.in_background, moved_seconds)


def _started(task: Callable[[], SaveReport], on_failure: Callable[[], None] = lambda: None) -> Future[SaveReport]:
    """On a thread that does not keep the process from ending: what is then half written has a temporary name.

    Those that write for it do; `grpo.cli.main` bounds how long.
    """
    future: Future[SaveReport] = Future()

    def run() -> None:
        try:
            future.set_result(task())
        except BaseException as error:  # noqa: BLE001 - raised by whoever asks for the result
            future.set_exception(error)
            on_failure()

    threading.Thread(target=run, name="checkpoint-save", daemon=True).start()
    return future
