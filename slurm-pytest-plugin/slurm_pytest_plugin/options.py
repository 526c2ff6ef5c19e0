"""The command line."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_pytest_plugin.decide import Limits
from slurm_pytest_plugin.run import Site

GROUP = "slurm cases"
DEFAULT_FOLDER = "slurm-runs"


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup(GROUP, "test cases as Slurm jobs")
    group.addoption(
        "--case", action="append", default=[], metavar="ID", dest="slurm_case",
        help="run exactly this case (may be given several times; default: all that the tests have)",
    )  # fmt: skip
    group.addoption(
        "--executor", choices=("slurm", "local"), dest="slurm_executor",
        help="where jobs run; default: slurm where there is an sbatch, else this machine if it can run the cases",
    )  # fmt: skip
    group.addoption("--partition", metavar="P", dest="slurm_partition", help="Slurm's, for cases that name none")
    group.addoption("--account", metavar="A", dest="slurm_account", help="Slurm's, for cases that name none")
    group.addoption(
        "--dry-run", action="store_true", dest="slurm_dry_run",
        help="write the job scripts, say what they may cost, and submit nothing",
    )  # fmt: skip
    group.addoption(
        "--from-run", type=Path, metavar="DIR", dest="slurm_from_run",
        help="submit nothing; take what an earlier run left in its folder, or, for one case, in the job's",
    )  # fmt: skip
    group.addoption(
        "--run-id", metavar="NAME", dest="slurm_run_id",
        help="name of the run; one that exists is waited for again, and none of its jobs is submitted twice",
    )  # fmt: skip
    group.addoption(
        "--max-jobs", type=_positive, metavar="N", dest="slurm_max_jobs", help="jobs in the queue at a time"
    )
    group.addoption(
        "--max-gpu-hours", type=float, metavar="H", dest="slurm_max_gpu_hours",
        help="of all jobs of the run; no retry and no further run is begun that would exceed it (default: no limit)",
    )  # fmt: skip
    group.addoption(
        "--max-queue", type=float, default=Limits.queue, metavar="SECONDS", dest="slurm_max_queue",
        help="that a job may wait for its start; then it is cancelled, and fails with class queue (default: a day)",
    )  # fmt: skip
    group.addoption(
        "--poll", type=float, default=Limits.poll, metavar="SECONDS", dest="slurm_poll",
        help="between two questions to the scheduler (default: %(default)s)",
    )  # fmt: skip
    group.addoption(
        "--runs-folder", type=Path, metavar="DIR", dest="slurm_runs_folder",
        help=f"where runs have their folders, seen by every node (default: {DEFAULT_FOLDER}, or ini slurm_runs_folder)",
    )  # fmt: skip
    parser.addini("slurm_runs_folder", "where runs have their folders, seen by every node", default=DEFAULT_FOLDER)


@dataclass(frozen=True)
class Settings:
    """What was asked for."""

    named: tuple[str, ...]
    executor: str | None
    dry_run: bool
    from_run: Path | None
    run_folder: Path
    limits: Limits
    site: Site


def settings_of(config: pytest.Config) -> Settings:
    """Raises UsageError for a run id that is no name of a folder, or options that exclude each other."""
    run_id = config.getoption("slurm_run_id") or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"
    if "/" in run_id or run_id.startswith((".", "-")) or not run_id.isprintable() or " " in run_id:
        raise pytest.UsageError(f"--run-id {run_id!r}: not a name of a folder")
    from_run = config.getoption("slurm_from_run")
    if from_run is not None and config.getoption("slurm_dry_run"):
        raise pytest.UsageError("--from-run and --dry-run exclude each other: neither submits anything")
    folder = config.getoption("slurm_runs_folder") or config.rootpath / config.getini("slurm_runs_folder")
    return Settings(
        named=tuple(config.getoption("slurm_case")),
        executor=config.getoption("slurm_executor"),
        dry_run=config.getoption("slurm_dry_run"),
        from_run=from_run,
        run_folder=Path(folder).resolve() / run_id,
        limits=Limits(queue=config.getoption("slurm_max_queue"), poll=config.getoption("slurm_poll")),
        site=Site(
            config.getoption("slurm_account"),
            config.getoption("slurm_partition"),
            config.getoption("slurm_max_jobs"),
            config.getoption("slurm_max_gpu_hours"),
        ),
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value
