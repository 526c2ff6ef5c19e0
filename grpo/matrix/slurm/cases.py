"""Cases of the matrix for slurm-pytest-plugin, which submits them and waits for them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.errors import EXIT_REQUEUE, MatrixError, SlurmError, TelemetryError
from grpo.matrix.judge import JobOutcome, Verdict
from grpo.matrix.judge.several import DECIDING, OUTSIDE_RULE
from grpo.matrix.load import Matrix
from grpo.matrix.resolve import resolve_case
from grpo.matrix.run import judge_directories
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
            working_directory=working_directory, environ=environ, reference=_shown(matrix, case, partition_name),
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
        more=further_runs(matrix, case, partition_name),
        max_runs=DECIDING if case.checks.against_reference else 1,
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


def further_runs(
    matrix: Matrix, case: Case, partition_name: str
) -> Callable[[Sequence[slurm.Outcome]], slurm.More | None]:
    """Whether the judge of the runs so far asks for one more: outside the band, or on a machine that is at fault."""
    import slurm_pytest_plugin as slurm

    def more(outcomes: Sequence[slurm.Outcome]) -> slurm.More | None:
        try:
            rerun = _judged(matrix, case, partition_name, outcomes).rerun
        except (MatrixError, TelemetryError):
            return None  # whoever judges at the end is told
        # A case in quarantine decides nothing, however often it runs.
        if rerun is None or case.id in matrix.quarantine.cases:
            return None
        if rerun.rule == OUTSIDE_RULE:
            return slurm.More(rerun.reason)
        return slurm.More(rerun.reason, rerun.exclude, elsewhere=False, infra=True)

    return more


def gpu_hours_of(matrix: Matrix, cases: Sequence[Case]) -> float:
    """What the jobs of these cases may take together, retries and reruns among them: the budget of their cadences."""
    return sum(float(getattr(matrix.budgets.gpu_hours, cadence)) for cadence in {case.cadence for case in cases})


def verdict_of(matrix: Matrix, case: Case, partition_name: str, outcome: slurm.Outcome) -> Verdict:
    """Judge what a case's jobs left, all of its runs together. `--from-run` may name a run that no job wrote."""
    return _judged(matrix, case, partition_name, (*outcome.earlier, outcome))


def _judged(matrix: Matrix, case: Case, partition_name: str, outcomes: Sequence[slurm.Outcome]) -> Verdict:
    runs = [(_run_folder(each), _job_outcome(each)) for each in outcomes]
    return judge_directories(matrix, case, partition_name, runs)


def _run_folder(outcome: slurm.Outcome) -> Path:
    folder = outcome.folder / RUN
    is_run_itself = not folder.is_dir() and (outcome.folder / "manifest.json").is_file()
    return outcome.folder if is_run_itself else folder


def _job_outcome(outcome: slurm.Outcome) -> JobOutcome | None:
    if outcome.executor is None and outcome.result is None:
        return None
    result, state = outcome.result, outcome.state
    if not outcome.jobs and outcome.executor is not None:
        state = "PENDING"  # it was refused, and never had a state
    if result is None:
        return JobOutcome(state)
    return JobOutcome(state, result.exit_code, "setup" if result.stage == "setup" else result.stage, result.stopped_by)


def _shown(matrix: Matrix, case: Case, partition_name: str) -> Path | None:
    """The file of a reference that has a total."""
    reference = matrix.reference(partition_name, case.id)
    if reference is None or _TOTAL not in reference.values:
        return None
    return (matrix.folder / "references" / partition_name / f"{case.id}.yaml").resolve()


def _expected(matrix: Matrix, case: Case, partition_name: str) -> str | None:
    """hours:minutes:seconds, from the reference's step; None without one."""
    reference = matrix.reference(partition_name, case.id)
    if reference is None or _TOTAL not in reference.values:
        return None
    seconds = min(seconds_of(case.time_limit), int(reference.values[_TOTAL].value * case.steps) + _START_SECONDS)
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
