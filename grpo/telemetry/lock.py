"""One run per directory, over all hosts that see it, however its process dies.

Two things hold a directory. A lock of the kernel on a file in it, which goes with the process: between processes of one
host, and on file systems whose locks hold between hosts (NFS with its lock service), it alone decides. And a lease, the
content of that file, whose owner changes it every few seconds: where locks do not reach other hosts (Lustre with
`localflock`, NFS with `nolock`) a run finds a lease of another host, and watches whether it still changes. No clocks
are compared, so one that jumps does no harm.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import threading
import time
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from grpo.errors import GrpoError, TelemetryError
from grpo.telemetry.journal import disk_error

FILE_NAME = ".lock"
BEAT_SECONDS = 10.0
WATCH_SECONDS = 35.0  # three beats and what a network file system may hold back
SETTLE_SECONDS = 3.0
DYING_SECONDS = 5.0
_POLL_SECONDS = 0.1
_BYTES = 1024  # rewritten in place, always as long: a full disk takes it too
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Owner:
    """Who holds a directory. `token` is new for every holding, `beat` counts its signs of life."""

    host: str
    boot: str  # of the kernel: the same host name may be another machine, or have been started anew
    process_id: int
    process_started: float
    token: str
    beat: int = 0
    released: bool = False

    def __str__(self) -> str:
        return f"process {self.process_id} on {self.host}"


class DirectoryLock:
    """Holds `<directory>/<file_name>` until `release`, or until the process dies."""

    def __init__(
        self,
        directory: Path,
        *,
        file_name: str = FILE_NAME,
        setting: str = "logger.log_dir",
        error: type[GrpoError] = TelemetryError,
    ) -> None:
        """`setting` is the key of the folder, and `error` the kind, of what is raised when another run holds it."""
        self._path = directory / file_name
        self._setting = setting
        self._error = error
        self._lost: str | None = None
        self._descriptor: int | None
        self._descriptor, self._owner = self._acquire()
        self._stop = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="directory-lock", daemon=True)
        self._beating.start()
        # A forked child (a verifier's pool) would otherwise keep the lock beyond this process.
        os.register_at_fork(after_in_child=self._close)

    def check(self) -> None:
        """Raises `error` if another run has taken the directory, or it could not be told that this one lives."""
        if self._lost is not None:
            raise self._error(self._lost)

    def release(self) -> None:
        """Give the directory free; more than once does no harm."""
        if self._descriptor is None:
            return
        self._stop.set()
        self._beating.join()
        if self._lost is None:
            _write(self._descriptor, replace(self._owner, released=True))
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _acquire(self) -> tuple[int, Owner]:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise disk_error(error, self._path) from error
        try:
            has_locks = self._lock(descriptor)
            self._refuse_living(_read(self._path), has_locks=has_locks)
            owner = _this_process()
            _write(descriptor, owner)
            if not has_locks:
                self._settle(owner)
        except OSError as error:
            os.close(descriptor)
            raise disk_error(error, self._path) from error
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, owner

    def _lock(self, descriptor: int) -> bool:
        """Whether the file system has locks."""
        ends = time.monotonic() + DYING_SECONDS
        try:
            while not _locked(descriptor):
                owner = _read(self._path)
                if owner is None or owner.boot != _boot() or _runs_here(owner) or time.monotonic() > ends:
                    raise self._held(owner)
                time.sleep(_POLL_SECONDS)  # its process is gone, and the kernel about to close its files
            # The directory may have been renamed between opening and locking.
            if os.fstat(descriptor).st_ino != self._path.stat().st_ino:
                raise BlockingIOError(errno.EWOULDBLOCK, "renamed by another run")
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            if error.errno in (errno.EWOULDBLOCK, errno.ENOENT):
                raise self._held(_read(self._path)) from error
            raise
        return True

    def _refuse_living(self, owner: Owner | None, *, has_locks: bool) -> None:
        if owner is None or owner.released:
            return
        if owner.boot == _boot():
            if not has_locks and _runs_here(owner):
                raise self._held(owner)
            return
        _log.warning(
            "%s was held by %s, which did not give it free; waiting %.0f s to see whether it lives",
            self._path.parent, owner, WATCH_SECONDS,
        )  # fmt: skip
        ends = time.monotonic() + WATCH_SECONDS
        while time.monotonic() < ends:
            time.sleep(_POLL_SECONDS)
            now = _read(self._path)
            if now is not None and (now.token, now.beat) != (owner.token, owner.beat):
                raise self._held(now)

    def _settle(self, owner: Owner) -> None:
        """Without locks the last of several that start at once has it."""
        time.sleep(SETTLE_SECONDS)
        now = _read(self._path)
        if now is None or now.token != owner.token:
            raise self._held(now)

    def _held(self, owner: Owner | None) -> GrpoError:
        who = "a process that did not say which" if owner is None else str(owner)
        return self._error(
            f"another run writes to {self._path.parent} ({who}): wait for it, stop it, or choose another folder with "
            f"{self._setting}"
        )

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            try:
                now = _read(self._path)
                if now is not None and now.token != self._owner.token:
                    self._lost = f"{self._held(now)}. It took the folder while this process did not run"
                    return
                self._owner = replace(self._owner, beat=self._owner.beat + 1)
                assert self._descriptor is not None
                _write(self._descriptor, self._owner)
            except OSError as error:
                self._lost = str(disk_error(error, self._path))
                return


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _this_process() -> Owner:
    return Owner(os.uname().nodename, _boot(), os.getpid(), psutil.Process().create_time(), uuid.uuid4().hex)


def _boot() -> str:
    """What tells this running kernel from all others; the host's name where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename


def _runs_here(owner: Owner) -> bool:
    try:
        process = psutil.Process(owner.process_id)
        return process.create_time() == owner.process_started and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _read(path: Path) -> Owner | None:
    """The owner that the file names; None if it names none. Opened anew: that is when a network file system looks."""
    try:
        value = json.loads(path.read_bytes())
        return Owner(**value)
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _write(descriptor: int, owner: Owner) -> None:
    os.pwrite(descriptor, json.dumps(asdict(owner)).encode().ljust(_BYTES), 0)
