"""Saving checkpoints so that a kill at any instant leaves the last complete one, and taking them back."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo.checkpoint import files, reading
from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.checkpoint.layout import (
    MANIFEST,
    MARKER,
    PIN,
    REPLACED,
    TMP,
    TRASH,
    VALUES,
    WRITER_LOCK,
    free_trash,
    is_leftover,
    looks_like_checkpoint,
    step_folder,
    step_folders,
)
from grpo.checkpoint.manifest import FileEntry, Manifest, Shards, canonical, merged
from grpo.checkpoint.pieces import whole_pieces
from grpo.checkpoint.reading import CheckpointInfo, Loaded, OpenCheckpoint, Refused
from grpo.checkpoint.retention import superfluous
from grpo.checkpoint.shards import MAX_SHARD_BYTES, plan_shards, write_shards
from grpo.checkpoint.stored import read_all
from grpo.checkpoint.values import encode_values
from grpo.errors import CheckpointError, GrpoError

_OVERHEAD_BYTES = 64 * 2**10  # manifest, headers and file system blocks, on top of tensors and values


@dataclass(frozen=True)
class SavedCheckpoint:
    """`problems` are failures of the tidying after a save that itself succeeded: they cost space, not work."""

    path: Path
    step: int
    bytes: int
    seconds: float  # of all but staging
    write_seconds: float  # of the ranks' files alone, the disk included
    removed: tuple[Path, ...] = ()  # by retention
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class LatestLoad:
    """`loaded` is None only where the directory holds no checkpoint at all."""

    loaded: Loaded | None
    refused: tuple[Refused, ...]  # damaged ones that are newer, or whose age cannot be told


@dataclass(frozen=True)
class LatestOpen:
    """As `LatestLoad`, the checkpoint held open and not read."""

    opened: OpenCheckpoint | None
    refused: tuple[Refused, ...]


class CheckpointManager:
    """The checkpoints of one run in one directory. Making one touches nothing: the directory is made by the first save.

    `fingerprint` holds JSON values that must be equal for a checkpoint to be loaded. One process saves; any may read.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep_latest: int,
        keep_top_k: int,
        metric_name: str,
        higher_is_better: bool,
        fingerprint: Mapping[str, Any],
        keep_every_n_steps: int | None = None,
        max_shard_bytes: int = MAX_SHARD_BYTES,
    ) -> None:
        assert keep_latest > 0, keep_latest
        assert keep_top_k >= 0, keep_top_k
        encode_values(dict(fingerprint))
        self.directory = directory
        self._keep_latest = keep_latest
        self._keep_top_k = keep_top_k
        self._keep_every_n_steps = keep_every_n_steps
        self._metric_name = metric_name
        self._higher_is_better = higher_is_better
        self._fingerprint = json.loads(canonical(fingerprint))
        self._max_shard_bytes = max_shard_bytes

    def save(
        self, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> SavedCheckpoint:
        """`save_shards` for whole tensors of this process."""
        plan = plan_shards(whole_pieces(tensors), self._max_shard_bytes)
        needed = plan.tensor_bytes
        return self.save_shards(step, lambda folder: [write_shards(folder, plan)], needed, values, metrics)

    def save_shards(
        self,
        step: int,
        write: Callable[[Path], Sequence[Shards]],
        tensor_bytes: int,
        values: Mapping[str, Any],
        metrics: Mapping[str, float],
    ) -> SavedCheckpoint:
        """Write `step_N`, then apply retention. When it returns, the checkpoint is on the disk.

        `write` is given the folder and returns when every process has its files in it, each forced to the disk;
        together they have `tensor_bytes` of data.
        A step that exists is replaced: at every instant the old or the new one can be loaded, and its pin is kept.
        Steps below those that exist are allowed, after a resume from an earlier one; the newest is the last one saved.
        Raises CheckpointError, on a full or read-only disk among others; earlier checkpoints are then as they were.
        """
        started = time.perf_counter()
        encoded = encode_values(dict(values))
        needed = tensor_bytes + len(encoded) + _OVERHEAD_BYTES
        with self._errors_of_the_disk(step, needed), self._writing():
            self._tidy()
            self._check_space(step, needed)
            manifest, write_seconds = self._write(step, write, encoded, metrics)
            self._commit(step)
            removed, problems = self._retain()
        return SavedCheckpoint(
            path=step_folder(self.directory, step),
            step=step,
            bytes=manifest.total_bytes,
            seconds=time.perf_counter() - started,
            write_seconds=write_seconds,
            removed=removed,
            problems=problems,
        )

    def list(self) -> list[CheckpointInfo]:
        """In the order of saving, the newest last; damaged ones have a `problem`."""
        return reading.list_checkpoints(self.directory)

    def latest(self) -> Path | None:
        """The last saved checkpoint whose manifest is sound and whose files have their sizes."""
        return next((info.path for info in reversed(self.list()) if info.problem is None), None)

    def load(self, path: Path | None = None, *, verify_hashes: bool = True) -> Loaded:
        """Verify and read one checkpoint, the last one saved by default; a damaged one is never passed over.

        Raises CheckpointError naming the file and what is wrong with it.
        """
        if path is None:
            infos = self.list()
            if not infos:
                raise CheckpointError(f"{self.directory} holds no checkpoint")
            path = infos[-1].path
        return reading.load_checkpoint(path, self._fingerprint, verify_hashes=verify_hashes)

    def load_latest(self, *, verify_hashes: bool = True) -> LatestLoad:
        """The last checkpoint saved that is whole; damaged ones are passed over and reported.

        Raises CheckpointError if all are damaged, or if the one to take is of another model or a newer format.
        """
        with self.open_latest(verify_hashes=verify_hashes) as found:
            if found.opened is None:
                return LatestLoad(None, found.refused)
            return LatestLoad(_read_all(found.opened), found.refused)

    @contextmanager
    def open_latest(self, *, verify_hashes: bool = True) -> Iterator[LatestOpen]:
        """The same, held open instead of read."""
        with ExitStack() as stack:
            yield self._open_latest(stack, verify_hashes=verify_hashes)

    def _open_latest(self, stack: ExitStack, *, verify_hashes: bool) -> LatestOpen:
        refused: list[Refused] = []
        for info in reversed(self.list()):
            opening = reading.open_checkpoint(info.path, self._fingerprint, verify_hashes=verify_hashes)
            try:
                return LatestOpen(stack.enter_context(opening), tuple(refused))
            except DamagedCheckpoint as error:
                refused.append(Refused(info.path, str(error)))
        if refused:
            reasons = "\n".join(f"  {item.reason}" for item in refused)
            raise CheckpointError(f"none of the checkpoints in {self.directory} can be loaded:\n{reasons}")
        return LatestOpen(None, ())

    def prepare(self) -> None:
        """Make the directory, and know before the first step whether it can be written.

        Raises CheckpointError naming it if it cannot be made or written, or another process saves there.
        """
        try:
            with self._writing():
                self._tidy()
        except OSError as error:
            raise CheckpointError(
                f"cannot write checkpoints to {self.directory}: {error.strerror or error}; "
                "checkpointing.checkpoint_dir, or else logger.log_dir, must be a folder that can be written"
            ) from error

    def superfluous(self) -> Sequence[CheckpointInfo]:
        """What retention deletes at the next save, if nobody reads it then; oldest first."""
        return superfluous(
            self.list(),
            keep_latest=self._keep_latest,
            keep_top_k=self._keep_top_k,
            metric_name=self._metric_name,
            higher_is_better=self._higher_is_better,
            keep_every_n_steps=self._keep_every_n_steps,
        )

    def prune(self) -> tuple[tuple[Path, ...], tuple[str, ...]]:
        """Apply retention now, as every save does at its end: what was removed, and what could not be.

        Raises CheckpointError if a run saves at this moment.
        """
        with self._writing():
            return self._retain()

    def clean(self) -> None:
        """Delete what kills left behind and finish a replacement that one interrupted, as every save does first."""
        if self.directory.is_dir():
            with self._writing():
                self._tidy()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep other processes from saving here at the same time."""
        if not self.directory.is_dir():
            files.make_folder(self.directory)
        with files.locked(self.directory / WRITER_LOCK, exclusive=True) as descriptor:
            if descriptor is None:
                raise CheckpointError(
                    f"another process is saving into {self.directory}; give each run its own checkpoint_dir"
                )
            yield

    @contextmanager
    def _errors_of_the_disk(self, step: int, needed: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = step_folder(self.directory, step)
            raise CheckpointError(
                f"cannot save {path}: {error}; needed {needed} bytes, free {_free_text(self.directory)}. "
                f"Earlier checkpoints are as they were{self._undo(step)}"
            ) from error

    def _undo(self, step: int) -> str:
        """Put things back after a failed save; what cannot be put back waits for the next save, and is said."""
        try:
            if step_folder(self.directory, step, TMP).is_dir() and is_leftover(step_folder(self.directory, step, TMP)):
                self._delete(step_folder(self.directory, step, TMP))
            self._restore_replaced(step)
        except OSError as error:
            return f"; tidying up failed too ({error}) and is repeated at the next save"
        return ""

    def _check_space(self, step: int, needed: int) -> None:
        free = shutil.disk_usage(self.directory).free
        if free < needed:
            raise CheckpointError(
                f"cannot save {step_folder(self.directory, step)}: needed {needed} bytes, free {free} bytes in "
                f"{self.directory}. Earlier checkpoints are as they were; free some space or keep fewer (keep_top_k)"
            )

    def _tidy(self) -> None:
        for folder in step_folders(self.directory):
            if folder.suffix == TMP and is_leftover(folder.path):
                self._delete(folder.path)
            elif folder.suffix == TRASH and is_leftover(folder.path):
                self._delete_unless_read(folder.path)
            elif folder.suffix == REPLACED and looks_like_checkpoint(folder.path):
                if step_folder(self.directory, folder.step).exists():
                    self._remove_unless_read(folder.path, folder.step)
                else:
                    self._restore_replaced(folder.step)

    def _restore_replaced(self, step: int) -> None:
        final, replaced = step_folder(self.directory, step), step_folder(self.directory, step, REPLACED)
        if replaced.is_dir() and not final.exists():
            files.rename(replaced, final)
            files.sync_folder(self.directory)

    def _write(
        self,
        step: int,
        write: Callable[[Path], Sequence[Shards]],
        values: bytes,
        metrics: Mapping[str, float],
    ) -> tuple[Manifest, float]:
        final, folder = step_folder(self.directory, step), step_folder(self.directory, step, TMP)
        for path in (final, folder):
            if path.is_symlink() or (path.exists() and not looks_like_checkpoint(path)):
                raise CheckpointError(f"{path} exists and is not a checkpoint; it is left alone. Move it away")
        sequence = 1 + max((int(info.sequence) for info in self.list() if math.isfinite(info.sequence)), default=-1)
        files.make_folder(folder)
        files.write_file(folder / MARKER, ())
        if (final / PIN).exists():
            files.write_file(folder / PIN, ())
        started = time.perf_counter()
        shards = self._written(step, folder, write)
        write_seconds = time.perf_counter() - started
        written = files.write_file(folder / VALUES, [values])
        manifest = Manifest(
            step=step,
            sequence=sequence,
            metrics={name: float(value) for name, value in metrics.items()},
            fingerprint=self._fingerprint,
            files={**shards.files, VALUES: FileEntry(bytes=written.bytes, sha256=written.sha256)},
            tensors=dict(shards.tensors),
        )
        files.write_file(folder / MANIFEST, [manifest.to_json()])
        files.sync_folder(folder)
        return manifest, write_seconds

    def _written(self, step: int, folder: Path, write: Callable[[Path], Sequence[Shards]]) -> Shards:
        try:
            return merged(write(folder))
        except GrpoError as error:  # of another process; those of this one's disk are told with the free space
            error.add_note(f"{step_folder(self.directory, step)} was not saved{self._undo(step)}")
            raise

    def _commit(self, step: int) -> None:
        final, replaced = step_folder(self.directory, step), step_folder(self.directory, step, REPLACED)
        if final.exists():
            if replaced.exists():  # somebody still reads what this step was before
                files.rename(replaced, free_trash(self.directory, step))
            # Until the next rename the old one is found under this name.
            files.rename(final, replaced)
        files.rename(step_folder(self.directory, step, TMP), final)
        files.sync_folder(self.directory)

    def _retain(self) -> tuple[tuple[Path, ...], tuple[str, ...]]:
        removed: tuple[Path, ...] = ()
        problems: tuple[str, ...] = ()
        try:
            self._tidy()
            for info in self.superfluous():
                if self._remove_unless_read(info.path, info.step):
                    removed += (info.path,)
        except OSError as error:
            problems += (f"old checkpoints could not be deleted, which is tried again at the next save: {error}",)
        return removed, problems

    def _remove_unless_read(self, path: Path, step: int) -> bool:
        """Whether the checkpoint could be removed; one that a process reads is left for the next save."""
        trash = free_trash(self.directory, step)
        if not (path / MANIFEST).is_file():
            self._trash(path, trash)
            return True
        with files.locked(path / MANIFEST, exclusive=True) as descriptor:
            if descriptor is not None:
                self._trash(path, trash)
        return descriptor is not None

    def _delete_unless_read(self, trash: Path) -> None:
        if not (trash / MANIFEST).is_file():
            self._delete(trash)
            return
        with files.locked(trash / MANIFEST, exclusive=True) as descriptor:
            if descriptor is not None:
                self._delete(trash)

    def _trash(self, path: Path, trash: Path) -> None:
        # Renamed first: a kill in the middle must not leave half of it under a checkpoint's name.
        files.rename(path, trash)
        files.sync_folder(self.directory)
        self._delete(trash)

    def _delete(self, folder: Path) -> None:
        files.remove_tree(folder, last=(MANIFEST, MARKER))


def _read_all(opened: OpenCheckpoint) -> Loaded:
    return Loaded(opened.path, opened.step, read_all(opened.tensors), opened.values, opened.metrics)


def _free_text(directory: Path) -> str:
    try:
        return f"{shutil.disk_usage(directory).free} bytes"
    except OSError as error:
        return f"unknown ({error.strerror})"
