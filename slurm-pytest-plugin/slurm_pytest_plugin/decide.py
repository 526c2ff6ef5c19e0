"""What to do next about a job: pure functions of what is known of it."""

from dataclasses import dataclass

from slurm_pytest_plugin.case import Case
from slurm_pytest_plugin.failure_names import FailureClass
from slurm_pytest_plugin.result import Result
from slurm_pytest_plugin.states import WAITING, Seen


@dataclass(frozen=True)
class Limits:
    """How long to wait for what, in seconds."""

    queue: float = 24 * 3600.0  # for the start, all waits of an attempt together
    grace: float = 120.0  # beyond the job's own time limit, for the scheduler to end it
    silence: float = 600.0  # that the scheduler may be out of reach
    lost: float = 60.0  # that the scheduler may not know a job which it accepted
    poll: float = 5.0
    confirmations: int = 2  # ticks in a row that must see the same end: a requeue passes through ends


@dataclass(frozen=True)
class Spent:
    """Seconds of an attempt until now."""

    queued: float = 0.0
    running: float = 0.0  # since the latest start
    unknown: float = 0.0
    confirmed: int = 0  # ticks in a row that saw this end, this one included


@dataclass(frozen=True)
class Wait:
    """Nothing to be done."""


@dataclass(frozen=True)
class Ended:
    """The job is at its end."""

    seen: Seen | None  # None: the scheduler no longer knows it


@dataclass(frozen=True)
class GiveUp:
    """The job is to be cancelled."""

    failure: FailureClass
    why: str


def watch(seen: Seen | None, spent: Spent, case: Case, limits: Limits) -> Wait | Ended | GiveUp:
    """What follows from the state of a submitted job."""
    if seen is None:
        return Ended(None) if spent.unknown > limits.lost else Wait()
    if seen.final:
        return Ended(seen) if spent.confirmed >= limits.confirmations else Wait()
    if seen.state in WAITING:
        return _watch_queue(seen, spent, limits)
    if spent.running > case.limit_seconds + limits.grace:
        return GiveUp(
            "timeout", f"{seen.state} {spent.running:.0f} s after its start, with a limit of {case.time_limit}"
        )
    return Wait()


def _watch_queue(seen: Seen, spent: Spent, limits: Limits) -> Wait | GiveUp:
    if seen.hopeless:
        return GiveUp("queue", f"it can never start: {seen.reason}")
    if spent.queued > limits.queue:
        return GiveUp("queue", f"not started within {limits.queue:.0f} s ({seen.reason or 'no reason given'})")
    return Wait()


@dataclass(frozen=True)
class Finish:
    """The case has its outcome."""


@dataclass(frozen=True)
class Restart:
    """Submit again in the same folder: the job saved and asked for it."""


@dataclass(frozen=True)
class Retry:
    """Submit again in a new folder, on other nodes."""


def after(
    case: Case, failure: FailureClass | None, result: Result | None, *, retries: int, restarts: int
) -> Finish | Restart | Retry:
    """What follows from the end of a job. Of failures only those of the infrastructure are tried again.

    `retries` and `restarts`: those that there were already.
    """
    asked = result is not None and case.requeue_exit_code is not None and result.exit_code == case.requeue_exit_code
    # Unknown: it was cancelled, say, and saved before it ended.
    if asked and failure != "unknown" and restarts < case.max_restarts:
        return Restart()
    if failure == "infra" and retries < case.infra_retries:
        return Retry()
    return Finish()
