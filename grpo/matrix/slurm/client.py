"""Slurm's own commands, each with a time limit of its own; their text output is read, never `--json`."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.errors import SlurmError

COMMAND_SECONDS = 30.0
# A job in one of these goes no further.
FINAL = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "TIMEOUT",
))  # fmt: skip
# Reasons for which a pending job will never start.
HOPELESS = frozenset((
    "AccountNotAllowed", "AssocMaxNodePerJobLimit", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount",
    "InvalidQOS", "JobHeldAdmin", "JobHeldUser", "PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed",
    "ReservationDeleted",
))  # fmt: skip


@dataclass(frozen=True)
class JobState:
    """A job as the scheduler sees it."""

    state: str  # Slurm's own name: PENDING, RUNNING, COMPLETED, ...
    reason: str = ""  # why it is pending
    nodes: str = ""

    @property
    def final(self) -> bool:
        return self.state in FINAL


class SlurmClient:
    """The cluster that SLURM_CONF, or the machine's own configuration, names."""

    def __init__(self) -> None:
        if shutil.which("sbatch") is None:
            raise SlurmError(
                "there is no sbatch on this machine: run this on a login node of a Slurm cluster, or start the "
                "one-machine cluster with ci/slurm/up.sh (as root, on Debian or Ubuntu)"
            )

    def submit(self, script: Path) -> str:
        """The id of the new job. Raises SlurmError with what sbatch said."""
        return _run(["sbatch", "--parsable", str(script)]).strip().partition(";")[0]

    def cancel(self, job_id: str) -> None:
        _run(["scancel", job_id])

    def state(self, job_id: str) -> JobState:
        """The job's state: from the queue, then from accounting where that is on, else from the controller.

        Raises SlurmError where none of them knows the job or answers.
        """
        line = _try(["squeue", "--noheader", "--states=all", "--jobs", job_id, "--format=%T|%r|%N"])
        if line:
            state, reason, nodes = line.splitlines()[0].split("|")
            found = JobState(state, reason, nodes)
            if not found.final:
                return found
        return self._final_state(job_id)

    def _final_state(self, job_id: str) -> JobState:
        # Accounting lags by seconds and may still say RUNNING; the controller keeps a job for MinJobAge after its end.
        fields = _try(["scontrol", "--oneliner", "show", "job", job_id])
        if fields:
            values = dict(part.partition("=")[::2] for part in fields.split())
            return JobState(values["JobState"], values.get("Reason", ""), values.get("NodeList", ""))
        columns = ["--noheader", "--parsable2", "--allocations", "--format=State,NodeList"]
        line = _try(["sacct", "--jobs", job_id, *columns])
        if line:
            state, nodes = line.splitlines()[0].split("|")
            return JobState(state.split()[0], "", nodes)  # "CANCELLED by 0"
        raise SlurmError(f"neither squeue, scontrol nor sacct knows job {job_id}")


def _try(command: Sequence[str]) -> str:
    """What the command printed; nothing where it failed, since the next one may know."""
    try:
        return _run(command).strip()
    except SlurmError:
        return ""


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} did not answer in {COMMAND_SECONDS:.0f} s") from None
    except OSError as error:
        raise SlurmError(f"{command[0]} cannot be run: {error}") from None
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise SlurmError(f"{command[0]}: {said}")
    return done.stdout
