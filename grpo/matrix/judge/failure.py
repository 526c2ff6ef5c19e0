"""Why a job failed: a closed set, decided from the scheduler's state and the job's own result file."""

from dataclasses import dataclass
from typing import Literal

from grpo.errors import EXIT_REQUEUE

FailureClass = Literal[
    "infra", "queue", "preempted", "timeout", "out_of_memory", "crash", "correctness", "regression", "unknown"
]

RETRIED: frozenset[FailureClass] = frozenset({"infra"})

_BY_STATE: dict[str, FailureClass] = {
    "NODE_FAIL": "infra",
    "BOOT_FAIL": "infra",
    "LAUNCH_FAILED": "infra",
    "RECONFIG_FAIL": "infra",
    "PREEMPTED": "preempted",
    "TIMEOUT": "timeout",
    "DEADLINE": "queue",
    "PENDING": "queue",
    "OUT_OF_MEMORY": "out_of_memory",
    "CANCELLED": "unknown",
}
_SIGKILL = 128 + 9


@dataclass(frozen=True)
class JobOutcome:
    """The scheduler's last state of a job (Slurm's names), and what its `result.json` says.

    `exit_code` is the trainer's and None where the job wrote no result file, or ended before the trainer did; `stage`
    is where it was then: "setup", "trainer" or "done".
    """

    state: str | None
    exit_code: int | None = None
    stage: str | None = None
    stopped_by: str | None = None  # the signal that the job script passed on: "USR1" before the limit, "TERM"


def classify(job: JobOutcome) -> FailureClass | None:
    """The class of a failed job; None where nothing failed.

    A step that fails under a script that ends 0 reads COMPLETED, so the result file has the last word on success; and
    a run that the scheduler cut short is its doing, whatever code that left behind.
    """
    if job.state in _BY_STATE:
        return _BY_STATE[job.state]
    if job.stage == "done" and job.exit_code == 0:
        return None if job.state in (None, "COMPLETED", "COMPLETING", "RUNNING") else "unknown"
    return _by_exit_code(job)


def _by_exit_code(job: JobOutcome) -> FailureClass:
    if job.stopped_by is not None:
        # Whatever it ended with: it was told to stop, during its set-up perhaps, had no checkpoint to go on from,
        # or was killed since it took too long.
        return "timeout" if job.stopped_by == "USR1" else "preempted"
    if job.exit_code is None or job.exit_code == 0:
        return "infra" if job.stage == "setup" else "unknown"
    if job.exit_code == _SIGKILL:
        # The kernel's out-of-memory killer leaves nothing else, and a scheduler's kill has a state of its own.
        return "out_of_memory"
    return "preempted" if job.exit_code == EXIT_REQUEUE else "crash"
