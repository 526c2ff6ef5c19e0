"""File operations whose order on the disk is known. Every change that this package makes to a disk is made here."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 16 * 2**20  # large enough that handing a piece to the hashing thread costs nothing
_CHUNK_BYTES_ALONE = 64 * 2**20  # between two pieces the interpreter's lock is taken from a thread that trains
_HASH_INLINE_BELOW = 2**17
_UNHASHED_CHUNKS = 64
_FLUSHED_BYTES = 2**27  # written before the disk is set to work on them
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@dataclass(frozen=True)
class Written:
    """What a file holds: its size in bytes and the SHA-256 of its content, in hexadecimal."""

    bytes: int
    sha256: str


def make_folder(path: Path) -> None:
    """Make one folder, and its parents where they are missing, each of them durably."""
    if not path.parent.is_dir():
        make_folder(path.parent)
    path.mkdir()
    sync_folder(path.parent)


def write_file(path: Path, pieces: Iterable[memoryview | bytes], *, alone: bool = False) -> Written:
    """Write a new file from its pieces, hash what is written, and force it to the disk. Raises OSError.

    As fast as it goes, with threads of its own; or `alone` in this one, which takes less of the processors and the
    memory from what else runs.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        return (_written_alone if alone else _written_fast)(descriptor, pieces)
    finally:
        os.close(descriptor)


def _written_fast(descriptor: int, pieces: Iterable[memoryview | bytes]) -> Written:
    """Hashing, writing and waiting for the disk all release the interpreter lock. The hash may stay behind the writing
    by some chunks, and the disk is set to work before all is written: the slowest sets the pace.
    """
    digest, size, unflushed = hashlib.sha256(), 0, 0
    hashing: deque[Future[None]] = deque()
    flushing: deque[Future[None]] = deque()
    with (
        ThreadPoolExecutor(1, thread_name_prefix="checkpoint-hash") as hasher,
        ThreadPoolExecutor(1, thread_name_prefix="checkpoint-flush") as flusher,
    ):
        for chunk in _chunks(pieces, CHUNK_BYTES):
            if not hashing and len(chunk) < _HASH_INLINE_BELOW:
                digest.update(chunk)
            else:
                hashing.append(hasher.submit(digest.update, chunk))
            _write_all(descriptor, chunk)
            size, unflushed = size + len(chunk), unflushed + len(chunk)
            _finish(hashing, _UNHASHED_CHUNKS)
            if unflushed >= _FLUSHED_BYTES:
                flushing.append(flusher.submit(os.fdatasync, descriptor))
                unflushed = 0
                _finish(flushing, 1)
        _finish(flushing, 0)  # an error of the disk is told once, to whoever asks first
        os.fsync(descriptor)
        _finish(hashing, 0)
    return Written(size, digest.hexdigest())


def _written_alone(descriptor: int, pieces: Iterable[memoryview | bytes]) -> Written:
    digest, size, unflushed = hashlib.sha256(), 0, 0
    for chunk in _chunks(pieces, _CHUNK_BYTES_ALONE):
        digest.update(chunk)
        _write_all(descriptor, chunk)
        size, unflushed = size + len(chunk), unflushed + len(chunk)
        if unflushed >= _FLUSHED_BYTES:
            # Else threads of the system would do it, whose priority is not this one's.
            os.fdatasync(descriptor)
            unflushed = 0
    os.fsync(descriptor)
    return Written(size, digest.hexdigest())


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def rename(source: Path, target: Path) -> None:
    """Give a folder another name in the same directory. The directory is synced by the caller."""
    source.rename(target)


def sync_folder(path: Path) -> None:
    """Force the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path, last: tuple[str, ...] = ()) -> None:
    """Delete a folder and all in it, the names in `last` at the end and in that order. Links go, their targets stay."""
    order = {name: index for index, name in enumerate(last, start=1)}
    for entry in sorted(path.iterdir(), key=lambda entry: (order.get(entry.name, 0), entry.name)):
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            entry.unlink()
    path.rmdir()


@contextmanager
def locked(path: Path, *, exclusive: bool) -> Iterator[int | None]:
    """Hold a lock on a file that the kernel drops with the process; yields its descriptor, or None if another holds it.

    Exclusive ones create the file. On a file system without locks the file counts as free. Raises OSError.
    """
    descriptor = os.open(path, (os.O_RDWR | os.O_CREAT if exclusive else os.O_RDONLY) | os.O_CLOEXEC, 0o644)
    try:
        held = _lock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        try:
            yield descriptor if held else None
        finally:
            if held:
                _lock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a forked child shares the lock
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _finish(work: deque[Future[None]], left: int) -> None:
    """Wait until no more than `left` are under way. Raises what they raised."""
    while len(work) > left:
        work.popleft().result()


def _chunks(pieces: Iterable[memoryview | bytes], size: int) -> Iterator[memoryview]:
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), size):
            yield view[start : start + size]


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
