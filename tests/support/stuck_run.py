"""What the processes of a run are at: for a harness whose run does not end."""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import TextIO

import psutil

_STACKS_S = 5.0
_TAIL_LINES = 15
_open: list[TextIO] = []  # the files of `answer_with_stacks`, as long as the process


def answer_with_stacks() -> None:
    """Have this process write its stacks to a file of its own on SIGUSR2, as ranks do."""
    _open.append(tempfile.TemporaryFile("w+"))  # noqa: SIM115
    faulthandler.register(signal.SIGUSR2, file=_open[-1], all_threads=True)


def crowding() -> float:
    """How many processes want to run for each core that this one may use, at least 1."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def tell_run(pid: int, directory: Path) -> str:
    """Of the run's process and all below it: state, CPU time, where it waits, and stacks; and the ends of its records.

    Runnable processes and a crowded machine: it was slow. All asleep: something is waited for.
    """
    load = "/".join(f"{each:.1f}" for each in os.getloadavg())
    lines = [f"load {load} on {len(os.sched_getaffinity(0))} cores of {os.cpu_count()}"]
    try:
        driver = psutil.Process(pid)
        processes = [driver, *driver.children(recursive=True)]
    except psutil.NoSuchProcess:
        return f"{lines[0]}; process {pid} is gone"
    seconds = 0.0
    for process in processes:
        try:
            used = sum(process.cpu_times()[:2])
            seconds += used
            command = " ".join(process.cmdline())[:160]
            age = time.time() - process.create_time()
            lines.append(
                f"{process.pid} of {process.ppid()}, {process.status()}, niceness {process.nice()}, age {age:.0f} s, "
                f"CPU {used:.1f} s, waits in {_waits(process.pid)}: {command}"
            )
            lines += _stacks(process.pid)
        except psutil.Error as error:
            lines.append(f"{process.pid}: {error}")
    lines.append(f"CPU time of all: {seconds:.1f} s")
    for name in ("events.jsonl", "logs/rank-0.log"):
        lines += _tail(directory / name)
    return "\n".join(lines)


def _waits(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text() or "?"
    except OSError:
        return "?"


def _stacks(pid: int) -> list[str]:
    """Of a process that answers SIGUSR2 with them; others are not asked, since it would end them."""
    status = Path(f"/proc/{pid}/status")
    try:
        caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
        if not caught >> (signal.SIGUSR2 - 1) & 1:
            return []
        files = [entry for entry in Path(f"/proc/{pid}/fd").iterdir() if "(deleted)" in str(entry.readlink())]
        before = {file: file.read_text(errors="replace") for file in files}
        os.kill(pid, signal.SIGUSR2)
        ends = time.monotonic() + _STACKS_S
        while time.monotonic() < ends:
            time.sleep(0.05)
            for file in files:
                text = file.read_text(errors="replace").removeprefix(before[file])
                if "most recent call first" in text and text.endswith("\n"):
                    return [f"    {line}" for line in text.splitlines() if line]
    except (OSError, IndexError, ValueError):
        return ["    (gone while it was asked)"]
    return ["    (asked for its stacks, did not answer)"]


def _tail(file: Path) -> list[str]:
    if not file.is_file():
        return [f"no {file.name}"]
    age = time.time() - file.stat().st_mtime
    text = file.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return [f"the end of {file.name}, written {age:.0f} s ago:", *(f"    {line}" for line in text)]
