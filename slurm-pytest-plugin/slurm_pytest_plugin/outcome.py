"""What became of a case."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_pytest_plugin.failure_names import FailureClass
from slurm_pytest_plugin.place import LOG, Executor
from slurm_pytest_plugin.result import Result

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class Outcome:
    """The end of a case, after all its attempts; what it says of a single job, it says of the last one.

    Attributes:
        state: the scheduler's last word on the last job, by Slurm's names; None where there was no job, or where the
            scheduler no longer knows it.
        result: what the job wrote of itself; None where it wrote nothing.
        failure: None where nothing failed.
        message: why, where the scheduler's state and the result do not say it all.
        folder: of the last attempt.
        jobs: ids of all its jobs, in order.
        nodes: of the last job, as Slurm writes lists.
        excluded: nodes that were at fault.
        restarts: of the last attempt.
        queued, ran: seconds, over all jobs until then.
        why: there was the last attempt; "" of the first.
        earlier: the outcomes of the runs before it, where `Case.more` asked for further ones.
    """

    case: str
    executor: Executor | None
    state: str | None
    result: Result | None
    failure: FailureClass | None
    folder: Path
    message: str = ""
    jobs: tuple[str, ...] = ()
    nodes: str = ""
    excluded: tuple[str, ...] = ()
    attempts: int = 1
    restarts: int = 0
    queued: float = 0.0
    ran: float = 0.0
    gpus: int = 0
    why: str = ""
    earlier: "tuple[Outcome, ...]" = ()

    @property
    def passed(self) -> bool:
        return self.failure is None

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.ran / 3600

    @property
    def sentence(self) -> str:
        """One line for people."""
        what = "passed" if self.failure is None else f"failed ({self.failure})"
        facts = [
            f"job {', '.join(self.jobs)}" if self.jobs else "no job",
            self.state or "the scheduler does not know it",
            "no result.json" if self.result is None else f"exit code {self.result.exit_code} at {self.result.stage}",
        ]
        if self.message:
            facts.append(" ".join(self.message.split()))
        if self.attempts > 1:
            why = f" ({self.why})" if self.why else ""
            facts.append(f"{self.attempts} attempts{why}, excluded {', '.join(self.excluded) or 'nothing'}")
        hours = f"{self.gpu_hours:.2f} GPU-hours" if self.gpus else f"{self.ran:.0f} s"
        return f"{self.case}: {what}: {'; '.join(facts)}; {hours} used, {self.queued:.0f} s waited"

    def properties(self) -> Mapping[str, str]:
        """For JUnit's `<properties>`."""
        return {
            "slurm_jobs": " ".join(self.jobs),
            "slurm_state": self.state or "",
            "slurm_nodes": self.nodes,
            "slurm_excluded": " ".join(self.excluded),
            "slurm_attempts": str(self.attempts),
            "slurm_runs": str(len(self.earlier) + 1),
            "slurm_last_attempt_for": self.why,
            "slurm_restarts": str(self.restarts),
            "slurm_executor": self.executor or "",
            "failure_class": self.failure or "",
            "gpu_hours": f"{self.gpu_hours:.4f}",
            "seconds_queued": f"{self.queued:.0f}",
            "seconds_run": f"{self.ran:.0f}",
            "job_folder": str(self.folder),
        }

    def tail(self, lines: int = 20) -> str:
        """The last lines of the job's log; "" where there is none."""
        try:
            with (self.folder / LOG).open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])
