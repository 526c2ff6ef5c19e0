"""One case on its way through its jobs."""

from dataclasses import dataclass, field
from pathlib import Path

from slurm_pytest_plugin.attempts import Ended
from slurm_pytest_plugin.case import Case
from slurm_pytest_plugin.decide import Spent
from slurm_pytest_plugin.outcome import Outcome
from slurm_pytest_plugin.states import WAITING, Seen


@dataclass
class Job:
    """Where a case is. `job_id` is None while nothing is submitted for it."""

    case: Case
    root: Path  # the case's folder, which has one for each attempt
    attempt: int = 1
    restarts: int = 0
    retries: int = 0  # attempts that the infrastructure spoilt
    why: str = ""  # there is this attempt; "" of the first
    exclude: tuple[str, ...] = ()  # nodes at fault
    avoid: tuple[str, ...] = ()  # nodes of earlier runs
    job_id: str | None = None
    jobs: list[str] = field(default_factory=list)
    seen: Seen | None = None
    note: str = ""
    remarks: list[str] = field(default_factory=list)  # what the outcome has to say besides
    ended: list[Ended] = field(default_factory=list)  # earlier attempts
    outcome: Outcome | None = None
    queued_before: float = 0.0
    ran_before: float = 0.0
    _queued: float = 0.0
    _unknown: float = 0.0
    _confirmed: int = 0
    _ran_in_earlier_stays: float = 0.0
    _at: float | None = None

    @property
    def folder(self) -> Path:
        return self.root / f"attempt-{self.attempt}"

    @property
    def excluded(self) -> tuple[str, ...]:
        """Nodes that the next job stays away from."""
        return tuple(dict.fromkeys((*self.exclude, *self.avoid)))

    @property
    def runs(self) -> list[Outcome]:
        """Earlier attempts that `Case.more` was asked about."""
        return [each.outcome for each in self.ended if each.counts]

    @property
    def queued(self) -> float:
        return self.queued_before + self._queued

    @property
    def ran(self) -> float:
        """Seconds; accounting sums over the runs of a requeued job, the controller knows the last one alone."""
        elapsed = 0.0 if self.seen is None else self.seen.elapsed
        return self.ran_before + max(elapsed, self._ran_in_earlier_stays + (elapsed if self._is_running else 0.0))

    @property
    def _is_running(self) -> bool:
        return self.seen is not None and self.seen.state not in WAITING

    def submitted(self, job_id: str, now: float) -> None:
        """A new job, whose time begins now; that of the jobs before it is kept."""
        self.queued_before, self.ran_before = self.queued, self.ran
        self.job_id, self.seen = job_id, None
        self._queued = self._unknown = self._ran_in_earlier_stays = 0.0
        self._confirmed = 0
        self._at = now
        if job_id not in self.jobs:
            self.jobs.append(job_id)

    def observe(self, seen: Seen | None, now: float) -> Spent:
        """Take note of what the scheduler says at this moment."""
        passed = 0.0 if self._at is None else now - self._at
        self._at = now
        before = self.seen
        if seen is None:
            self._unknown += passed
            return Spent(self._queued, 0.0, self._unknown)
        self._unknown = 0.0
        if seen.state in WAITING:
            self._queued += passed
            if before is not None and before.state not in WAITING:
                self._ran_in_earlier_stays += before.elapsed
        same = before is not None and before.state == seen.state
        self._confirmed = self._confirmed + 1 if same else 1
        self.seen = seen
        return Spent(self._queued, seen.elapsed, 0.0, self._confirmed)
