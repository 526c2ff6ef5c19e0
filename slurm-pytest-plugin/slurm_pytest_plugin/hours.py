"""What a selection of cases may cost."""

from collections.abc import Iterable
from dataclasses import dataclass

from slurm_pytest_plugin.case import Case, seconds_of


@dataclass(frozen=True)
class Hours:
    """GPU-hours, or node-hours where there are no GPUs."""

    expected: float
    worst: float


def hours_of(case: Case) -> Hours:
    """Worst: every run and every retry that is allowed, each with every restart, each to its time limit."""
    units = (case.gpus or case.nodes) / 3600
    expected = case.limit_seconds if case.expected is None else seconds_of(case.expected)
    runs = (case.max_runs + case.infra_retries) * (1 + case.max_restarts)
    return Hours(units * expected, units * case.limit_seconds * runs)


def next_hours(case: Case, seconds: float) -> float:
    """GPU-hours that one more run takes: as the last one did (`seconds`), or as is expected if that is more."""
    return max(case.gpus * seconds / 3600, hours_of(case).expected if case.gpus else 0.0)


def total(cases: Iterable[Case]) -> tuple[Hours, Hours]:
    """Summed GPU-hours, and node-hours of cases without GPUs."""
    listed = list(cases)
    with_gpus = [hours_of(case) for case in listed if case.gpus]
    without = [hours_of(case) for case in listed if not case.gpus]
    return _sum(with_gpus), _sum(without)


def _sum(hours: Iterable[Hours]) -> Hours:
    listed = list(hours)
    return Hours(sum(one.expected for one in listed), sum(one.worst for one in listed))
