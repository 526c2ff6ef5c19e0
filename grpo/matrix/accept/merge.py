"""Several runs of a case as one measured reference: medians, spreads and node sets."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from grpo.errors import MatrixError
from grpo.matrix.judge import Evidence, Verdict
from grpo.matrix.judge.bands import SPREAD_RUNS
from grpo.matrix.judge.evidence import PHASE_METRICS, TOKENS, TOTAL
from grpo.matrix.schema import Case, Figure, Measured, Reference, Stack
from grpo.matrix.schema.reference import REFERENCE_VERSION

_UNITS = (
    ("timing/", "s"),
    ("memory/", "GiB"),
    ("performance/mfu", "of the peak"),
    ("performance/training_tflops", "TFLOP/s"),
    ("performance/refit_gib", "GiB"),
    ("performance/refit_gbps", "GB/s"),
    ("performance/refit_messages", "messages"),
    ("performance/", "tokens/s"),
)
_DIGITS = 6


@dataclass(frozen=True)
class JudgedRun:
    """A run directory, where it lies, and what the judge says of it."""

    path: str
    evidence: Evidence
    verdict: Verdict


def merge(runs: Sequence[JudgedRun], case: Case, *, today: dt.date, approved_by: str | None = None) -> Reference:
    """The reference that these runs measure.

    A value is the median over runs of each run's own figure: their steps are never put together. Spread is (max - min)
    / median, null for fewer than three runs. Raises MatrixError where the runs are not of one commit, image and stack,
    or one lacks a figure that the case asks for.
    """
    _check_alike(runs)
    first = runs[0].evidence
    values = {metric: _figure(metric, [run.verdict.values[metric] for run in runs]) for metric in _metrics(runs, case)}
    return Reference(
        schema_version=REFERENCE_VERSION,
        source=Measured(
            kind="measured",
            runs=[run.evidence.run or run.path for run in runs],
            nodes=[list(run.evidence.hosts) for run in runs],
            commit=first.commit or "unknown",
            image=first.image,
            stack=Stack.model_validate(dict(first.stack)),
            date=today,
            approved_by=approved_by,
        ),
        values=values,
    )


def _check_alike(runs: Sequence[JudgedRun]) -> None:
    if not runs:
        raise MatrixError("no run to make a reference of")
    for what, values in (
        ("commits", [run.evidence.commit for run in runs]),
        ("images", [run.evidence.image for run in runs]),
        ("stacks", [dict(run.evidence.stack) for run in runs]),
    ):
        differing = [run.path for run, value in zip(runs, values, strict=True) if value != values[0]]
        if differing:
            raise MatrixError(f"{differing[0]} and {runs[0].path} are of different {what}: one reference is of one")


def _metrics(runs: Sequence[JudgedRun], case: Case) -> Iterable[str]:
    """What the case asks for, and besides what explains it: the total, the phases, rates, tokens."""
    everywhere = set(runs[0].verdict.values).intersection(*(run.verdict.values for run in runs[1:]))
    for run in runs:
        missing = [metric for metric in case.checks.against_reference if metric not in run.verdict.values]
        if missing:
            raise MatrixError(f"{run.path} lacks {', '.join(missing)}, which the case holds against its reference")
    wanted = [TOTAL, *PHASE_METRICS, *case.checks.against_reference]
    wanted += sorted(metric for metric in everywhere if metric.startswith("performance/"))
    wanted.append(TOKENS)
    return [
        metric
        for metric in dict.fromkeys(wanted)
        if metric in everywhere and all(run.verdict.values[metric] > 0 for run in runs)
    ]


def _figure(metric: str, values: Sequence[float]) -> Figure:
    middle = median(values)
    spread = (max(values) - min(values)) / middle if len(values) >= SPREAD_RUNS else None
    return Figure(
        value=_rounded(middle), unit=unit_of(metric), spread=None if spread is None else round(spread, _DIGITS)
    )


def unit_of(metric: str) -> str:
    """The unit of a metric that a reference may hold."""
    return "tokens" if metric == TOKENS else next((unit for start, unit in _UNITS if metric.startswith(start)), "")


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def node_sets(runs: Sequence[JudgedRun]) -> Mapping[tuple[str, ...], list[JudgedRun]]:
    """The runs by the nodes that they were on."""
    found: dict[tuple[str, ...], list[JudgedRun]] = {}
    for run in runs:
        found.setdefault(run.evidence.hosts, []).append(run)
    return found
