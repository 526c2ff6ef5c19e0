"""One case as one job, without pytest: submit, wait with deadlines, judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.errors import MatrixError, SlurmError
from grpo.matrix.judge import Verdict
from grpo.matrix.load import Matrix
from grpo.matrix.schema import Case
from grpo.matrix.slurm.cases import gpu_hours_of, verdict_of

if TYPE_CHECKING:
    import slurm_pytest_plugin as slurm
    from rich.table import Table
    from slurm_pytest_plugin.request import Cluster


@dataclass(frozen=True)
class Waiting:
    """How long to wait in the queue, how often to ask, and where to say what happens."""

    queue_seconds: float
    say: Callable[[str], None]
    poll_seconds: float = 5.0


def submit_and_judge(
    matrix: Matrix, case: Case, partition: str, job: slurm.Case, folder: Path, *, waiting: Waiting,
    cluster: Cluster | None = None,
) -> Verdict:  # fmt: skip
    """Run the job in `folder` (absolute, new or empty) and judge what it left; an interruption cancels it.

    Raises MatrixError where the folder holds something already, SlurmError where there is no Slurm.
    """
    from slurm_pytest_plugin import CaseError, Limits, Run, SlurmClient
    from slurm_pytest_plugin.request import ClusterError
    from slurm_pytest_plugin.run import Site

    _require_empty(folder)
    limits = Limits(queue=waiting.queue_seconds, poll=waiting.poll_seconds)
    try:
        if cluster is None:
            cluster = SlurmClient()
            if silence := cluster.silence():
                raise SlurmError(f"no Slurm answers here: {silence}")
        site = Site(max_gpu_hours=gpu_hours_of(matrix, [case]))
        run = Run(cluster, folder, [job], limits=limits, site=site, say=waiting.say)
        folder.mkdir(parents=True, exist_ok=True)
        run.start()
        try:
            outcome = run.wait(case.id)
        finally:
            run.cancel()
    except (CaseError, ClusterError) as error:
        raise SlurmError(str(error)) from error
    return verdict_of(matrix, case, partition, outcome)


def write_dry(job: slurm.Case, folder: Path) -> Table:
    """Write the job's script; what it may cost. Raises MatrixError, SlurmError."""
    from slurm_pytest_plugin import CaseError, Place
    from slurm_pytest_plugin.run import write_script
    from slurm_pytest_plugin.table import dry_table

    _require_empty(folder)
    try:
        script = write_script(job, Place(folder / job.id / "attempt-1", "slurm", 1))
    except CaseError as error:
        raise SlurmError(str(error)) from error
    return dry_table([job], {job.id: script})


def _require_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise MatrixError(f"{folder} is not empty: name another folder for this job")
