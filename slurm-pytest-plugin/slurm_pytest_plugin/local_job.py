"""Runs one job on this machine as Slurm would: time limit, notice before it, log, end. A program of its own.

It ends its job when the pytest that started it is gone, so that none is left behind.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

STATE = "local.json"
KILL_SECONDS = 10.0
_POLL_SECONDS = 0.1


def main(arguments: list[str]) -> int:
    parent, limit, notice = int(arguments[0]), float(arguments[1]), float(arguments[2])
    script, log = Path(arguments[3]), Path(arguments[4])
    asked: list[str] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append("CANCELLED"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    began = time.monotonic()
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - no shell
            ["/bin/bash", str(script)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=script.parent,
            start_new_session=True,
        )  # fmt: skip
    cut = _watch(process, began, limit, notice, lambda: bool(asked) or os.getppid() != parent)
    _end(process)
    state = cut or ("COMPLETED" if process.returncode == 0 else "FAILED")
    _write(script.parent / STATE, {"state": state, "elapsed": time.monotonic() - began})
    return 0


def _watch(
    process: "subprocess.Popen[bytes]", began: float, limit: float, notice: float, is_cancelled: Callable[[], bool]
) -> str | None:
    """Wait for the end; the state where it was not the job's own."""
    noticed = notice <= 0 or 2 * notice >= limit
    while process.poll() is None:
        elapsed = time.monotonic() - began
        if is_cancelled():
            return "CANCELLED"
        if elapsed >= limit:
            return "TIMEOUT"
        if not noticed and elapsed >= limit - notice:
            noticed = True
            process.send_signal(signal.SIGUSR1)
        time.sleep(_POLL_SECONDS)
    return None


def _end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM to all that the job started, then SIGKILL, also to what its script left running."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_SECONDS)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _write(path: Path, value: dict[str, object]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value), encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
