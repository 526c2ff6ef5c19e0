"""One case on this machine, without a scheduler: train in a process of its own, then judge."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from grpo.errors import MatrixError
from grpo.matrix.judge import JobOutcome, Verdict
from grpo.matrix.judge.several import OUTSIDE_RULE
from grpo.matrix.load import Matrix
from grpo.matrix.resolve import overrides_of, resolve_case
from grpo.matrix.run import judge_directories, judge_directory
from grpo.matrix.schema import Case
from grpo.matrix.schema.types import seconds_of

RUN = "run"  # the run directory, in the folder of the case
LOG = "trainer.log"
SAVING_SECONDS = 60.0  # that a trainer whose time is over may take to save and end


def run_here(matrix: Matrix, case: Case, partition: str, folder: Path) -> Verdict:
    """Train the case up to its time limit, and judge what it left in `folder / "run"`.

    Raises MatrixError for a case of several nodes, a partition that is not the case's, or a folder that is not empty.
    """
    if partition not in case.partitions:
        raise MatrixError(f"the case {case.id} is for {', '.join(case.partitions)}, not for the partition {partition}")
    if case.nodes > 1:
        raise MatrixError(f"the case {case.id} has {case.nodes} nodes: grpo matrix submit runs it on a cluster")
    if folder.exists() and any(folder.iterdir()):
        raise MatrixError(f"{folder} is not empty: name another folder for this run")
    resolve_case(case)  # what cannot be run is told before anything starts
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / RUN
    command = [
        sys.executable,
        "-m",
        "grpo",
        "train",
        case.recipe,
        *overrides_of(case),
        f"logger.log_dir={run}",
        "--quiet",
    ]
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603 - no shell
        outcome = _wait(process, seconds_of(case.time_limit))
    return judge_directory(matrix, case, partition, run, outcome)


def run_until_decided(
    matrix: Matrix, case: Case, partition: str, folder: Path, *, say: Callable[[str], None]
) -> Verdict:
    """`run_here`, and twice more where the run is outside its band and the cadence's GPU-hours allow it (rule 4).

    There are no other nodes here, so all runs are on this one. Raises as `run_here` does.
    """
    verdict, folders = run_here(matrix, case, partition, folder), [folder]
    budget = float(getattr(matrix.budgets.gpu_hours, case.cadence))
    while verdict.rerun is not None and verdict.rerun.rule == OUTSIDE_RULE and case.id not in matrix.quarantine.cases:
        hours = (len(folders) + 1) * verdict.rerun.gpu_hours / verdict.rerun.runs
        if hours > budget:
            say(f"not run again: that makes {hours:.2f} GPU-hours, and {case.cadence} cases have {budget:g}")
            break
        again = folder.with_name(f"{folder.name}-again-{len(folders)}")
        say(f"{verdict.sentence}\n{verdict.rerun.reason}, here on the same node: {again}")
        own = run_here(matrix, case, partition, again)
        if own.outcome == "fail" and own.failure != "regression":
            return own  # wrong in any run is wrong
        folders.append(again)
        verdict = judge_directories(matrix, case, partition, [(each / RUN, None) for each in folders])
    return verdict


def _wait(process: "subprocess.Popen[bytes]", limit: float) -> JobOutcome:
    """How it ended, in a scheduler's words."""
    try:
        code = process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        _end(process)
        return JobOutcome("TIMEOUT", process.returncode, "trainer", "TERM")
    except BaseException:
        _end(process)
        raise
    code = 128 - code if code < 0 else code  # of a signal, as a shell says it
    return JobOutcome("COMPLETED" if code == 0 else "FAILED", code, "done" if code == 0 else "trainer")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=SAVING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
