"""Where a run is: its job, its steps, its checkpoint, what it has cost, and its step against the reference."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from grpo.errors import MatrixError, TelemetryError
from grpo.matrix.judge.attribution import attribute
from grpo.matrix.judge.evidence import TOTAL
from grpo.matrix.judge.steps import select
from grpo.matrix.judge.verdict import Share
from grpo.matrix.load import Matrix
from grpo.matrix.run import RESULT, read_result
from grpo.matrix.schema import Reference
from grpo.matrix.slurm.script import RUN
from grpo.telemetry.reader import Run, read_run

SCRIPT = "job.sh"
_CASE = re.compile(r"^# Case (\S+) on partition (\S+)\. ", re.MULTILINE)
WARMUP_STEPS = 5  # of a run of no case


@dataclass(frozen=True)
class JobView:
    """The scheduler's view of the job."""

    job_id: str
    state: str
    reason: str = ""
    nodes: str = ""
    elapsed: float = 0.0  # seconds


@dataclass(frozen=True)
class StepView:
    """The median step so far, in seconds, and the reference's."""

    seconds: float
    steps: int  # that the median is of
    reference: float | None = None
    shares: tuple[Share, ...] = ()  # of the difference, largest first


@dataclass(frozen=True)
class Status:
    """What is known; None where it is not, or not yet."""

    folder: Path
    case: str | None
    partition: str | None
    job: JobView | None
    stage: str | None  # of the job's result file
    run: str | None  # the run directory's own word: running, completed, stopped, failed, killed
    reason: str | None
    step: int | None
    max_steps: int | None
    checkpoint: tuple[int, str] | None  # step, path
    gpus: int
    seconds: float | None  # that the job, or else the run, has taken
    timing: StepView | None

    @property
    def gpu_hours(self) -> float | None:
        return None if self.seconds is None else self.gpus * self.seconds / 3600


def find_folder(target: Path) -> Path:
    """The job's folder, else the run directory, that a path leads to: the latest attempt of a case's or a run's folder.

    Raises MatrixError.
    """
    if not target.is_dir():
        raise MatrixError(f"{target}: neither a folder nor the number of a job")
    if (target / SCRIPT).is_file() or (target / RUN / "manifest.json").is_file():
        return target
    if (target / "manifest.json").is_file():
        return target.parent if (target.parent / SCRIPT).is_file() else target
    found = sorted(target.glob(f"**/attempt-*/{SCRIPT}"), key=lambda path: path.stat().st_mtime)
    cases = {path.parents[1] for path in found}
    if len(cases) == 1:
        return found[-1].parent
    if cases:
        raise MatrixError(f"{target} has jobs of several cases: name one of {', '.join(sorted(map(str, cases)))}")
    raise MatrixError(f"{target}: neither the folder of a job (no {SCRIPT}) nor a run directory (no manifest.json)")


def status_of(folder: Path, job: JobView | None, matrix: Matrix | None, *, now: float | None = None) -> Status:
    """Put together what the folder and the scheduler tell. `now`: seconds since 1970."""
    case, partition = case_of(folder)
    try:
        run = read_run(folder / RUN if (folder / RUN).is_dir() else folder)
    except TelemetryError:
        run = None
    result = read_result(folder) if (folder / RESULT).is_file() else None
    return Status(
        folder=folder,
        case=case,
        partition=partition,
        job=job,
        stage=None if result is None else result.stage,
        run=None if run is None else run.state,
        reason=None if run is None else run.manifest.reason,
        step=run.steps[-1] if run is not None and run.steps else None,
        max_steps=None if run is None else run.config.get("grpo", {}).get("max_num_steps"),
        checkpoint=None if run is None else _last_checkpoint(run),
        gpus=_gpus(run, case, matrix),
        seconds=_seconds(run, job, time.time() if now is None else now),
        timing=None if run is None else _timing(run, case, partition, matrix),
    )


def case_of(folder: Path) -> tuple[str | None, str | None]:
    """Case and partition, from the job's script; None where there is none."""
    path = folder / SCRIPT
    found = _CASE.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return (found[1], found[2]) if found else (None, None)


def _last_checkpoint(run: Run) -> tuple[int, str] | None:
    saved = [event for event in run.events if event.get("kind") == "checkpoint"]
    return (int(saved[-1]["step"]), str(saved[-1]["path"])) if saved else None


def _gpus(run: Run | None, case: str | None, matrix: Matrix | None) -> int:
    if case is not None and matrix is not None and case in matrix.cases:
        return matrix.cases[case].gpus
    cluster: Mapping[str, Any] = {} if run is None else run.config.get("cluster", {})
    return int(cluster.get("num_nodes", 1)) * int(cluster.get("gpus_per_node", 0))


def _seconds(run: Run | None, job: JobView | None, now: float) -> float | None:
    if job is not None and job.elapsed:
        return job.elapsed
    if run is None:
        return None
    running = run.state == "running"
    ended = now if running else run.manifest.ended
    return None if ended is None else ended - run.manifest.started


def step_view(
    metrics: Sequence[Mapping[str, Any]], resume_steps: Sequence[int], warmup_steps: int, reference: Reference | None
) -> StepView | None:
    """The median step after the warm-up (of all steps, while there is none after it); None before the first."""
    chosen = select(metrics, resume_steps, warmup_steps)
    records = chosen.judged or chosen.training
    names = {name for record in records for name in record if name.startswith("timing/")}
    values = {
        name: median(figures)
        for name in names
        if (figures := [record[name] for record in records if record.get(name) is not None])
    }
    if TOTAL not in values:
        return None
    if reference is None or TOTAL not in reference.values:
        return StepView(values[TOTAL], len(records))
    return StepView(values[TOTAL], len(records), reference.values[TOTAL].value, attribute(values, reference))


def _timing(run: Run, case: str | None, partition: str | None, matrix: Matrix | None) -> StepView | None:
    known = matrix.cases.get(case) if matrix is not None and case is not None else None
    reference = matrix.reference(partition, case) if matrix is not None and partition and case else None
    resumed = [each.step for each in run.manifest.resumes]
    return step_view(run.metrics, resumed, known.warmup_steps if known else WARMUP_STEPS, reference)
