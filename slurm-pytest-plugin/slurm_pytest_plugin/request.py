"""What a run asks of a cluster, whichever it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slurm_pytest_plugin.case import Case
from slurm_pytest_plugin.place import Executor
from slurm_pytest_plugin.states import Seen


class ClusterError(RuntimeError):
    """A cluster that refuses a job or does not answer in time."""


@dataclass(frozen=True)
class Request:
    """One submission. Everything else is in the script."""

    case: Case
    script: Path
    tag: str  # by which the job can be found again: run id, case, attempt
    exclude: tuple[str, ...] = ()
    account: str | None = None
    partition: str | None = None
    restarts: int = 0


class Cluster(Protocol):
    """Slurm, this machine, or a pretended one."""

    executor: Executor

    def submit(self, request: Request) -> str:
        """The id of the new job. Raises ClusterError."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End these jobs. Raises ClusterError."""

    def states(self, job_ids: Sequence[str]) -> Mapping[str, Seen]:
        """What is known of these jobs, asked for all at once. Raises ClusterError where nothing answers."""

    def find(self, tag: str) -> str | None:
        """The job that was submitted with this tag, if it is known."""

    def faulty(self, nodes: str) -> tuple[str, ...]:
        """Those of these nodes that the cluster itself holds for unfit now."""

    def expand(self, nodes: str) -> tuple[str, ...]:
        """`gpu[1-3]` -> its three names."""

    def answers(self) -> bool:
        """Whether the cluster can be asked at all just now."""
