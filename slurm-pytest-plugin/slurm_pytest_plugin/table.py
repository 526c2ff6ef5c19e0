"""The run as a table: live while pytest waits, and what a dry run would do."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.table import Table

from slurm_pytest_plugin.case import Case
from slurm_pytest_plugin.hours import hours_of, total
from slurm_pytest_plugin.job import Job


def run_table(run_id: str, jobs: Iterable[Job]) -> Table:
    """State, nodes, time and progress of every job."""
    table = Table(title=f"run {run_id}", title_justify="left", expand=False)
    for name in ("case", "job", "state", "nodes", "ran", "progress", "attempt"):
        table.add_column(name, overflow="fold")
    for job in jobs:
        table.add_row(
            job.case.id, job.job_id or "-", _state(job), _nodes(job), clock(job.ran), _progress(job), _attempt(job)
        )  # fmt: skip
    return table


def dry_table(cases: Iterable[Case], scripts: Mapping[str, Path]) -> Table:
    """What would be submitted, and what it may cost."""
    listed = list(cases)
    table = Table(title="dry run: nothing is submitted", title_justify="left", expand=False)
    for name in ("case", "nodes", "GPUs", "time limit", "hours expected", "hours at worst"):
        table.add_column(name)
    table.add_column("script", overflow="fold")
    for case in listed:
        hours = hours_of(case)
        unit = "GPU" if case.gpus else "node"
        table.add_row(
            case.id, str(case.nodes), str(case.gpus), case.time_limit, f"{hours.expected:.2f} {unit}",
            f"{hours.worst:.2f} {unit}", str(scripts[case.id]),
        )  # fmt: skip
    for unit, hours in zip(("GPU", "node"), total(listed), strict=True):
        if hours.worst:
            table.add_row("all", "", "", "", f"{hours.expected:.2f} {unit}", f"{hours.worst:.2f} {unit}", "")
    return table


def clock(seconds: float) -> str:
    """hours:minutes:seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _state(job: Job) -> str:
    if job.outcome is not None:
        return "passed" if job.outcome.passed else f"failed ({job.outcome.failure})"
    if job.seen is None:
        return "submitted" if job.job_id else "not submitted"
    return f"{job.seen.state} ({job.seen.reason})" if job.seen.reason else job.seen.state


def _attempt(job: Job) -> str:
    without = f", without {', '.join(job.excluded)}" if job.excluded else ""
    return "" if job.attempt == 1 else f"{job.attempt}: {job.why}{without}"


def _nodes(job: Job) -> str:
    return "" if job.seen is None else job.seen.nodes


def _progress(job: Job) -> str:
    return "" if job.case.progress is None or job.job_id is None else job.case.progress(job.folder)
