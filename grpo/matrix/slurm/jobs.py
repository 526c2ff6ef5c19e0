"""Jobs that were submitted already: their state, and their folders."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from grpo.errors import SlurmError
from grpo.matrix.slurm.cases import require_plugin
from grpo.matrix.status import JobView

_COMMAND_SECONDS = 30


def job_view(job_id: str) -> JobView | None:
    """What Slurm says of the job; None where it does not know it any more. Raises SlurmError."""
    require_plugin()
    from slurm_pytest_plugin import SlurmClient
    from slurm_pytest_plugin.request import ClusterError

    try:
        seen = SlurmClient().states([job_id]).get(job_id)
    except ClusterError as error:
        raise SlurmError(str(error)) from error
    return None if seen is None else JobView(job_id, seen.state, seen.reason, seen.nodes, seen.elapsed)


def job_in(folder: Path) -> JobView | None:
    """The last job of a job's folder, where this machine can ask for it; else None."""
    job_id = last_job(folder)
    if job_id is None:
        return None
    if not job_id.isdigit():
        return JobView(job_id, "on the machine that submitted it")
    try:
        return job_view(job_id)
    except SlurmError:
        return JobView(job_id, "no Slurm here that knows it")


def last_job(folder: Path) -> str | None:
    """Its id, from the ledger of the run that the folder (RUN/CASE/attempt-N) belongs to; None without one."""
    require_plugin()
    from slurm_pytest_plugin.ledger import Ledger, LedgerError

    try:
        entries = Ledger(folder.parents[1]).read().get(folder.parent.name, [])
    except LedgerError as error:
        raise SlurmError(str(error)) from error
    ids = [entry.job_id for entry in entries if entry.job_id and f"attempt-{entry.attempt}" == folder.name]
    return ids[-1] if ids else None


def job_folder(job_id: str) -> Path:
    """Where the job's script is, from Slurm's controller. Raises SlurmError."""
    command = ["scontrol", "--oneliner", "show", "job", job_id]
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"scontrol cannot be asked for job {job_id}: {error}") from None
    found = re.search(r"\sWorkDir=(\S+)", done.stdout)
    if done.returncode != 0 or found is None:
        raise SlurmError(
            f"Slurm does not know job {job_id} (any more): {done.stderr.strip() or 'no answer'}. "
            "Name the run directory instead"
        )
    return Path(found[1])
