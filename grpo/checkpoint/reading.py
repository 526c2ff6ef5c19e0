"""Finding, verifying and loading checkpoints. Nothing here changes the disk: any process may do it at any time."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo.checkpoint import files
from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.checkpoint.layout import MANIFEST, PIN, REPLACED, VALUES, looks_like_checkpoint, step_folders
from grpo.checkpoint.manifest import Manifest, check_fingerprint, read_manifest
from grpo.checkpoint.stored import StoredTensors, read_shards
from grpo.checkpoint.values import decode_values
from grpo.errors import CheckpointError

_HASH_THREADS = 4
_ATTEMPTS = 3


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint as it lies on the disk, its content unread. `problem` says why it cannot be loaded."""

    path: Path
    step: int
    sequence: float  # order of saving; infinite where the manifest cannot be read
    bytes: int
    metrics: Mapping[str, float]
    pinned: bool
    problem: str | None = None


@dataclass(frozen=True)
class Loaded:
    path: Path
    step: int
    tensors: dict[str, Tensor]  # on the CPU; tied ones are one object
    values: dict[str, Any]
    metrics: dict[str, float]


@dataclass(frozen=True)
class OpenCheckpoint:
    """A verified checkpoint whose tensors are read when they are asked for, in any part."""

    path: Path
    step: int
    tensors: StoredTensors
    values: dict[str, Any]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Refused:
    """A damaged checkpoint that was passed over. `reason` names the file."""

    path: Path
    reason: str


def list_checkpoints(directory: Path) -> list[CheckpointInfo]:
    """The checkpoints of a directory in the order of saving, the newest last; sizes are compared, contents not read.

    Those whose manifest cannot be read come last. Other folders and files are not looked into.
    """
    found = list(step_folders(directory))
    complete = {folder.step for folder in found if folder.suffix == ""}
    infos = [
        _info(folder.path, folder.step)
        for folder in found
        if (folder.suffix == "" or (folder.suffix == REPLACED and folder.step not in complete))
        and looks_like_checkpoint(folder.path)
    ]
    return sorted(infos, key=lambda info: (info.sequence, info.step))


def load_checkpoint(path: Path, fingerprint: Mapping[str, Any], *, verify_hashes: bool = True) -> Loaded:
    """Verify a checkpoint wholly, then read it, under a shared lock that keeps retention away.

    Raises DamagedCheckpoint, OtherModelCheckpoint or NewerCheckpoint.
    """
    for attempt in range(_ATTEMPTS):
        try:
            with _locked(path) as descriptor, _noticing_moves(path, descriptor):
                manifest, values = _verified(path, fingerprint, verify_hashes=verify_hashes)
                tensors = read_shards(path, manifest.tensors)
                return Loaded(path, manifest.step, tensors, values, manifest.metrics)
        except _Moved:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def open_checkpoint(
    path: Path, fingerprint: Mapping[str, Any] | None, *, verify_hashes: bool = True
) -> Iterator[OpenCheckpoint]:
    """Verify a checkpoint wholly, then hold it open under a shared lock that keeps retention away.

    `fingerprint` None: it is not compared, since another process has.
    Raises DamagedCheckpoint, OtherModelCheckpoint or NewerCheckpoint.
    """
    with ExitStack() as stack:
        for attempt in range(_ATTEMPTS):
            try:
                with ExitStack() as held:
                    descriptor = held.enter_context(_locked(path))
                    with _noticing_moves(path, descriptor):
                        manifest, values = _verified(path, fingerprint, verify_hashes=verify_hashes)
                        tensors = held.enter_context(StoredTensors(path, manifest.tensors))
                    stack.enter_context(held.pop_all())
                    break
            except _Moved:
                if attempt == _ATTEMPTS - 1:
                    raise
        yield OpenCheckpoint(path, manifest.step, tensors, values, manifest.metrics)


def verify_checkpoint(path: Path) -> None:
    """Compare all sizes and hashes with the manifest. Raises DamagedCheckpoint or NewerCheckpoint."""
    _verify_hashes(path, _read_sizes(path))


class _Moved(DamagedCheckpoint):
    """The folder was replaced by a newer save of the same step while it was read."""


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Yields a descriptor of the manifest."""
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(files.locked(path / MANIFEST, exclusive=False))
        except FileNotFoundError as error:
            raise DamagedCheckpoint(_missing_manifest(path)) from error
        except OSError as error:
            raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
        if descriptor is None:
            raise DamagedCheckpoint(f"{path} is being deleted by retention")
        yield descriptor


@contextmanager
def _noticing_moves(path: Path, descriptor: int) -> Iterator[None]:
    """Tell damage from a folder that was replaced while it was read."""
    before = os.fstat(descriptor)
    try:
        yield
        if not _is(path / MANIFEST, before):
            raise _Moved(f"{path} was replaced while it was read")
    except DamagedCheckpoint as error:
        if isinstance(error, _Moved) or _is(path / MANIFEST, before):
            raise
        raise _Moved(str(error)) from error
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error


def _verified(
    path: Path, fingerprint: Mapping[str, Any] | None, *, verify_hashes: bool
) -> tuple[Manifest, dict[str, Any]]:
    manifest = read_manifest(path)
    if fingerprint is not None:
        check_fingerprint(path, manifest.fingerprint, fingerprint)
    _check_sizes(path, manifest)
    if verify_hashes:
        _verify_hashes(path, manifest)
    return manifest, decode_values(path / VALUES)


def _info(path: Path, step: int) -> CheckpointInfo:
    pinned = (path / PIN).exists()
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return CheckpointInfo(path, step, math.inf, 0, {}, pinned, str(error))
    problem = None
    try:
        _check_sizes(path, manifest)
    except DamagedCheckpoint as error:
        problem = str(error)
    return CheckpointInfo(
        path, manifest.step, manifest.sequence, manifest.total_bytes, manifest.metrics, pinned, problem
    )


def _read_sizes(path: Path) -> Manifest:
    manifest = read_manifest(path)
    _check_sizes(path, manifest)
    return manifest


def _check_sizes(path: Path, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        try:
            size = (path / name).stat().st_size
        except OSError as error:
            raise DamagedCheckpoint(f"{path / name} is missing or unreadable: {error.strerror}") from error
        if size != entry.bytes:
            what = "truncated" if size < entry.bytes else "another file"
            raise DamagedCheckpoint(f"{path / name} has {size} bytes, the manifest says {entry.bytes}: it is {what}")


def _verify_hashes(path: Path, manifest: Manifest) -> None:
    with ThreadPoolExecutor(_HASH_THREADS, thread_name_prefix="checkpoint-verify") as pool:
        found = pool.map(lambda name: files.hash_file(path / name), manifest.files)
        for (name, entry), sha256 in zip(manifest.files.items(), found, strict=True):
            if sha256 != entry.sha256:
                raise DamagedCheckpoint(
                    f"{path / name} was altered: SHA-256 {sha256[:12]}..., the manifest says {entry.sha256[:12]}..."
                )


def _is(path: Path, before: os.stat_result) -> bool:
    try:
        return os.path.samestat(before, path.stat())
    except FileNotFoundError:
        return False


def _missing_manifest(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist: no checkpoint there"
    return f"{path} is not a complete checkpoint: {MANIFEST} is missing"
