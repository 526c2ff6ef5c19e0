"""The checkpoint folder belongs to one run, from before it loads until it has ended."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from grpo.checkpoint.layout import RUN_LOCK
from grpo.checkpoint.manager import CheckpointManager
from grpo.errors import CheckpointError
from grpo.telemetry.lock import DirectoryLock


class HeldCheckpoints:
    """Keeps a second run out of a checkpoint folder, also one whose run directory is another. Nothing for None."""

    def __init__(self, checkpoints: CheckpointManager | None) -> None:
        self._checkpoints = checkpoints
        self._lock: DirectoryLock | None = None

    def take_existing(self) -> None:
        """Hold the folder if there is one. Raises CheckpointError naming the run that holds it."""
        if self._checkpoints is not None and self._checkpoints.directory.is_dir():
            self.take()

    def take(self) -> None:
        """Hold the folder, which exists. Raises CheckpointError naming the run that holds it."""
        if self._checkpoints is not None and self._lock is None:
            self._lock = DirectoryLock(
                self._checkpoints.directory, file_name=RUN_LOCK, setting="checkpointing.checkpoint_dir",
                error=CheckpointError,
            )  # fmt: skip

    def check(self) -> None:
        """Raises CheckpointError if another run has taken the folder."""
        if self._lock is not None:
            self._lock.check()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
