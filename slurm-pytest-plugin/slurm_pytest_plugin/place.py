"""Where a job runs, and the names of its files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Executor = Literal["slurm", "local"]

SCRIPT = "job.sh"
LOG = "job.log"


@dataclass(frozen=True)
class Place:
    """Where one job runs; a script may be made from it."""

    folder: Path  # absolute, the job's own and its working directory
    executor: Executor
    attempt: int  # from 1; more after failures of the infrastructure
