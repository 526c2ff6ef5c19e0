"""Ends the processes of a Ray session when the process that started it is gone, even if that was killed.

Ray's own agents, and what workers have started, otherwise outlive it. Run as `python -m
grpo.workers.groups.keeper FOLDER` by the process to watch, with a pipe as its standard input.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

_POLL_SECONDS = 1.0
_STOP_SECONDS = 20.0
_PAUSE_SECONDS = 0.1


def start_keeper(folder: Path) -> subprocess.Popen[bytes]:
    """Watch this process; `stop_keeper` ends it."""
    return subprocess.Popen(  # noqa: S603 - this very module
        [sys.executable, "-m", __name__, str(folder)], stdin=subprocess.PIPE, start_new_session=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip


def stop_keeper(keeper: subprocess.Popen[bytes]) -> None:
    """Let it clear away what is left, and wait for it."""
    assert keeper.stdin is not None
    keeper.stdin.close()
    keeper.wait(2 * _STOP_SECONDS)


def clear(folder: Path, *, but: int) -> None:
    """End every process of the session except the process `but`, and remove its folder."""
    ends = time.monotonic() + _STOP_SECONDS
    while (found := processes_of(folder, but=but)) and time.monotonic() < ends:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(_PAUSE_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path, *, but: int) -> list[psutil.Process]:
    """The processes that have a file of the session's folder open: what Ray starts writes there, and so do theirs."""
    inside = f"{folder}{os.sep}"
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != but and any(file.path.startswith(inside) for file in process.open_files()):
                found.append(process)
        except psutil.Error:  # gone, or another user's
            continue
    return found


def _wait_for_end(parent: int) -> None:
    """Until standard input closes or the parent is another: a fork of the watched process may hold the pipe open."""
    while os.getppid() == parent:
        ready, _, _ = select.select([sys.stdin], [], [], _POLL_SECONDS)
        if ready:
            return


if __name__ == "__main__":
    watched = os.getppid()
    _wait_for_end(watched)
    clear(Path(sys.argv[1]), but=watched)
