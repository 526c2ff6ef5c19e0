"""What the operating system is asked for: to kill with the parent, to limit memory, to kill a whole family."""

import contextlib
import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"


def _prctl(option: int, argument: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def adopt_orphans() -> None:
    """Make daemons of descendants children of this process, so that it can find and kill them (Linux)."""
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that forked it ends (Linux)."""
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the call
        os._exit(1)


def limit_memory(megabytes: int | None, *, final: bool) -> None:
    """Limit the address space (Linux; macOS does not enforce it). `final`: it cannot be raised again."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if megabytes is not None and _LINUX:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        wanted = megabytes << 20
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, soft if final else hard))


def unlimit_memory() -> None:
    """Take back a limit that was not final."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def kill_family(pid: int) -> None:
    """SIGKILL to process `pid`, a child of ours that is not reaped yet, and to its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_descendants(rounds: int = 20) -> None:
    """SIGKILL to everything below this process, also what moved to a session of its own."""
    import psutil

    for _ in range(rounds):  # a family that forks faster than it dies is not waited for without end
        children = psutil.Process().children(recursive=True)
        if not children:
            return
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.TimeoutExpired):
                child.wait(timeout=0.5)
