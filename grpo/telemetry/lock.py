"""One run per directory: an advisory lock that the kernel drops with the process, however it dies."""

import errno
import fcntl
import os
from pathlib import Path

from grpo.errors import TelemetryError
from grpo.telemetry.journal import disk_error

FILE_NAME = ".lock"


class DirectoryLock:
    """Holds `<directory>/.lock`. Raises TelemetryError when another process holds it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = _acquire(directory)
        # A forked child (a verifier's pool) would otherwise keep the lock beyond this process.
        os.register_at_fork(after_in_child=self.release)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _acquire(directory: Path) -> int:
    path = directory / FILE_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise disk_error(error, path) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The directory may have been renamed between opening and locking.
        if os.fstat(descriptor).st_ino != path.stat().st_ino:
            raise BlockingIOError(errno.EWOULDBLOCK, "renamed by another run")
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    except OSError as error:
        holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.ENOENT):
            raise TelemetryError(
                f"another run writes to {directory} (process {holder or 'unknown'}): wait for it, stop it, or choose "
                "another folder with logger.log_dir"
            ) from error
        raise disk_error(error, path) from error
    return descriptor
