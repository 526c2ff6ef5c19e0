"""Why a job failed: decided from the scheduler's state and the job's own result file, never from words in a log."""

from slurm_pytest_plugin.failure_names import FAILURES, FailureClass
from slurm_pytest_plugin.result import DONE, SETUP, Result

__all__ = ["FAILURES", "FailureClass", "classify"]

_BY_STATE: dict[str, FailureClass] = {
    "NODE_FAIL": "infra",
    "BOOT_FAIL": "infra",
    "LAUNCH_FAILED": "infra",
    "RECONFIG_FAIL": "infra",
    "REVOKED": "unknown",
    "PREEMPTED": "preempted",
    "TIMEOUT": "timeout",
    "DEADLINE": "queue",
    "PENDING": "queue",
    "OUT_OF_MEMORY": "out_of_memory",
    "CANCELLED": "unknown",
}
_SIGKILL = 128 + 9
_SUCCESS = (None, "COMPLETED", "COMPLETING", "RUNNING")


def classify(state: str | None, result: Result | None, requeue_exit_code: int | None = None) -> FailureClass | None:
    """The class of a failed job; None where nothing failed.

    A step that fails under a script that ends 0 reads COMPLETED, so the result file has the last word on success. What
    the script itself says of a failure goes before what follows from its exit code, and a run that the scheduler cut
    short is the scheduler's doing whatever code that left behind.

    Args:
        state: the scheduler's last state of the job, by Slurm's names; None where it no longer knows the job.
        result: what the job wrote; None where it wrote nothing.
        requeue_exit_code: the exit code that means "saved, start me again".
    """
    if state in _BY_STATE:
        return _BY_STATE[state]
    if result is None:
        return "unknown"
    if result.failure is not None:
        return result.failure
    if result.stage == DONE and result.exit_code == 0:
        return None if state in _SUCCESS else "unknown"
    return _by_exit_code(result, requeue_exit_code)


def _by_exit_code(result: Result, requeue_exit_code: int | None) -> FailureClass:
    if result.stopped_by is not None:
        # Whatever it ended with: it was told to stop, during its set-up perhaps, or was killed since it took too long.
        return "timeout" if result.stopped_by == "USR1" else "preempted"
    if result.exit_code is None or result.exit_code == 0:
        return "infra" if result.stage == SETUP else "unknown"
    if result.exit_code == _SIGKILL:
        # The kernel's out-of-memory killer leaves nothing else, and a scheduler's kill has a state of its own.
        return "out_of_memory"
    return "preempted" if result.exit_code == requeue_exit_code else "crash"
