"""Cases of the matrix for slurm-pytest-plugin, which submits them and waits for them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.errors import EXIT_REQUEUE, MatrixError, SlurmError, TelemetryError
from grpo.matrix.judge import JobOutcome, Verdict
from grpo.matrix.load import Matrix
from grpo.matrix.resolve import resolve_case
from grpo.matrix.run import judge_directory
from grpo.matrix.schema import Case
from grpo.matrix.schema.types import seconds_of
from grpo.matrix.slurm.script import (
    NOTICE_SECONDS,
    RUN,
    check_job,
    gpu_options,
    render_body,
    restarts_of,
    sbatch_options,
)  # fmt: skip
from grpo.telemetry.reader import read_run

if TYPE_CHECKING:
    import slurm_pytest_plugin as slurm

_START_SECONDS = 600  # of a job on GPUs, for the expectation alone
_TOTAL = "timing/total"


def require_plugin() -> None:
    """Raise SlurmError where slurm-pytest-plugin is not installed."""
    if importlib.util.find_spec("slurm_pytest_plugin") is None:
        raise SlurmError("jobs need slurm-pytest-plugin: pip install ./slurm-pytest-plugin (in a checkout of grpo)")


def partition_of(matrix: Matrix, case: Case, name: str | None) -> str:
    """The partition that was named, or the case's only one. Raises MatrixError."""
    if name is not None:
        matrix.partition(name)
        return name
    if len(case.partitions) > 1:
        raise MatrixError(f"{case.id} is for {', '.join(case.partitions)}: choose one with --partition")
    return case.partitions[0]


def job_of(
    matrix: Matrix,
    case: Case,
    partition_name: str,
    *,
    environ: Mapping[str, str],
    working_directory: Path,
    account: str | None = None,
) -> slurm.Case:
    """The case as a job. Raises MatrixError for one that the partition cannot run."""
    require_plugin()
    import slurm_pytest_plugin as slurm

    partition, config = matrix.partition(partition_name), resolve_case(case).config
    check_job(case, partition_name, partition, config)

    def script(place: slurm.Place) -> str:
        return render_body(
            case, partition_name, partition, config, place.folder, executor=place.executor,
            working_directory=working_directory, environ=environ,
        )  # fmt: skip

    return slurm.Case(
        id=case.id,
        script=script,
        time_limit=case.time_limit,
        nodes=case.nodes,
        gpus_per_node=case.gpus_per_node,
        expected=_expected(matrix, case, partition_name),
        options=tuple(sbatch_options(partition)),
        gpu_options=gpu_options(case, partition),
        account=account or partition.slurm.account or "",
        partition=partition.slurm.partition or "",
        requeue_exit_code=EXIT_REQUEUE,
        max_restarts=restarts_of(config),
        notice_seconds=NOTICE_SECONDS,
        clean_environment=True,
        writes_result=True,
        # Without GPUs the nodes can be pretended ones of this machine.
        runs_here=None if case.gpus else True,
        progress=progress,
    )


def progress(folder: Path) -> str:
    """How far the run in a job's folder is: `step 12`."""
    try:
        steps = read_run(folder / RUN).steps
    except TelemetryError:
        return ""
    return f"step {steps[-1]}" if steps else "starting"


def verdict_of(matrix: Matrix, case: Case, partition_name: str, outcome: slurm.Outcome) -> Verdict:
    """Judge what a job left. `--from-run` may name a run directory that no job wrote."""
    folder = outcome.folder / RUN
    if not folder.is_dir() and (outcome.folder / "manifest.json").is_file():
        folder = outcome.folder
    job = None
    if outcome.executor is not None or outcome.result is not None:
        result, state = outcome.result, outcome.state
        if not outcome.jobs and outcome.executor is not None:
            state = "PENDING"  # it was refused, and never had a state
        job = JobOutcome(state) if result is None else JobOutcome(
            state, result.exit_code, "setup" if result.stage == "setup" else result.stage, result.stopped_by
        )  # fmt: skip
    return judge_directory(matrix, case, partition_name, folder, job)


def _expected(matrix: Matrix, case: Case, partition_name: str) -> str | None:
    """hours:minutes:seconds, from the reference's step; None without one."""
    reference = matrix.reference(partition_name, case.id)
    if reference is None or _TOTAL not in reference.values:
        return None
    seconds = min(seconds_of(case.time_limit), int(reference.values[_TOTAL].value * case.steps) + _START_SECONDS)
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
