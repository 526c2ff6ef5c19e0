"""The trainer, killed once after a given step as if its node were lost: `python -m grpo.matrix.slurm.interrupt`.

The killed run asks for what a run that saved asks for, to be started again; then the trainer runs undisturbed, and
goes on from its last checkpoint.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from grpo.errors import EXIT_REQUEUE
from grpo.telemetry.journal import read_journal

MARKER = "interrupted"  # in the job's folder: it was done already
PROGRAM = "grpo"
_POLL_SECONDS = 0.1
_PASSED_ON = (signal.SIGUSR1, signal.SIGTERM)


def command(after_step: int, run: Path, arguments: Sequence[str]) -> list[str]:
    """What a job runs instead of `grpo ARGUMENTS`, after `python -m`."""
    return ["grpo.matrix.slurm.interrupt", "--after-step", str(after_step), "--run", str(run), "--", *arguments]


def main() -> int:
    """The trainer's exit code; EXIT_REQUEUE when it was killed here."""
    parser = argparse.ArgumentParser(prog="python -m grpo.matrix.slurm.interrupt", description=__doc__)
    parser.add_argument("--after-step", type=int, required=True)
    parser.add_argument("--run", type=Path, required=True, help="the run directory")
    parser.add_argument("arguments", nargs="+", help="of grpo, after --")
    options = parser.parse_args()
    trainer = subprocess.Popen([sys.executable, "-m", PROGRAM, *options.arguments])  # noqa: S603 - no shell
    _pass_signals_on(trainer)
    marker = options.run.with_name(MARKER)
    while trainer.poll() is None:
        if not marker.exists() and _last_step(options.run) >= options.after_step:
            marker.touch()
            _kill(trainer)
            sys.stderr.write(f"killed after step {options.after_step}, to go on from the last checkpoint\n")
            return EXIT_REQUEUE
        time.sleep(_POLL_SECONDS)
    return trainer.returncode if trainer.returncode >= 0 else 128 - trainer.returncode


def _last_step(run: Path) -> int:
    steps = [int(line["step"]) for line in read_journal(run / "metrics.jsonl")]
    return steps[-1] if steps else 0


def _kill(trainer: "subprocess.Popen[bytes]") -> None:
    """The trainer first, so that it can do nothing about it, then all that it had started."""
    started = psutil.Process(trainer.pid).children(recursive=True)
    trainer.kill()
    trainer.wait()
    for process in started:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(started, timeout=30)


def _pass_signals_on(trainer: "subprocess.Popen[bytes]") -> None:
    def pass_on(number: int, _frame: Any) -> None:
        if trainer.poll() is None:
            trainer.send_signal(number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)


if __name__ == "__main__":
    sys.exit(main())
