"""The token-matched comparison: the ratio of the compute, and every overhead apart."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np

from grpo.errors import MatrixError
from grpo.matrix.compare.pairing import computed_tokens, pair_by_tokens
from grpo.matrix.judge.evidence import OTHER, PHASE_METRICS, TOTAL
from grpo.telemetry.journal import to_json

SCHEMA_VERSION = 1
TOLERANCE = 0.01
RESAMPLES = 4000
COVERAGE = 0.95
LEAST_PAIRS = 10  # below, an interval says little
COMPUTE = ("timing/logprobs", "timing/policy_training")
WORK = ("timing/generation", *COMPUTE, "timing/refit")
_SEED = 1

Kind = Literal["total", "compute", "work", "overhead", "part"]
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Side:
    """One run."""

    name: str
    records: Sequence[Record]  # the steps to compare: without warm-up, checkpoints and validations
    outside: float | None  # seconds of the run that no step covers: set-up and end


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """Mean seconds of the paired steps. Ratios are second over first, None where the first has none."""

    name: str
    kind: Kind
    first: float
    second: float
    ratio: float | None
    ratio_interval: Interval | None
    difference_interval: Interval

    @property
    def difference(self) -> float:
        return self.second - self.first


@dataclass(frozen=True)
class Matched:
    """What two runs say about each other."""

    first: str
    second: str
    steps: tuple[int, int]  # that could be paired
    pairs: int
    tolerance: float
    token_difference: float  # mean of second over first less 1: what the pairing leaves
    worst_difference: float  # of any pair
    tokens: tuple[float, float]  # mean of the paired steps
    compute: Row
    rows: tuple[Row, ...]
    overhead_share: tuple[float, float]  # of the step: neither generation, log-probs, training nor refit
    outside: tuple[float | None, float | None]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain: dict[str, Any] = to_json({"schema_version": SCHEMA_VERSION, **asdict(self)})
        return plain


def matched(first: Side, second: Side, *, tolerance: float = TOLERANCE) -> Matched:
    """Pair the steps by computed tokens and compare them.

    The interval is the bootstrap's (percentiles over resampled pairs), for the ratio of sums and the difference of
    means. Raises MatrixError where a run does not say its tokens or no steps can be paired.
    """
    tokens = _tokens(first), _tokens(second)
    pairs = pair_by_tokens(*tokens, tolerance)
    if not pairs:
        raise MatrixError(
            f"no steps to pair: {first.name} computed {_range(tokens[0])} tokens a step and {second.name} "
            f"{_range(tokens[1])}, and a pair may differ by {100 * tolerance:g} %"
        )
    a = [first.records[left] for left, _ in pairs]
    b = [second.records[right] for _, right in pairs]
    counts = np.array([[tokens[0][left], tokens[1][right]] for left, right in pairs])
    relative = counts[:, 1] / counts[:, 0] - 1
    resampled = np.random.default_rng(_SEED).integers(0, len(pairs), (RESAMPLES, len(pairs)))
    rows = [
        _row(name, kind, _seconds(metrics, a), _seconds(metrics, b), resampled)
        for name, kind, metrics in _compared(a, b)
    ]
    return Matched(
        first=first.name,
        second=second.name,
        steps=(len(tokens[0]), len(tokens[1])),
        pairs=len(pairs),
        tolerance=tolerance,
        token_difference=float(relative.mean()),
        worst_difference=float(np.abs(relative).max()),
        tokens=(float(counts[:, 0].mean()), float(counts[:, 1].mean())),
        compute=next(row for row in rows if row.kind == "compute"),
        rows=tuple(rows),
        overhead_share=(_overhead(a), _overhead(b)),
        outside=(first.outside, second.outside),
    )


def _tokens(side: Side) -> list[float]:
    counts = [computed_tokens(record) for record in side.records]
    known = [count for count in counts if count is not None]
    if not known or len(known) < len(counts):
        raise MatrixError(
            f"{side.name}: {len(counts) - len(known)} of {len(counts)} steps do not say how many tokens they computed "
            "(train/computed_tokens, or rollout/* and train/padding_efficiency)"
        )
    return known


def _compared(a: Sequence[Record], b: Sequence[Record]) -> list[tuple[str, Kind, tuple[str, ...]]]:
    """Name, kind and metrics of each row; the compute is what both sides have of it."""
    compute = tuple(name for name in COMPUTE if _has(name, a) and _has(name, b))
    if not compute:
        raise MatrixError(
            "neither policy training nor log-probs took any time in both runs: there is no compute to compare"
        )
    rows: list[tuple[str, Kind, tuple[str, ...]]] = [("total", "total", (TOTAL,)), ("compute", "compute", compute)]
    for metric in (*PHASE_METRICS, OTHER):
        if _has(metric, a) or _has(metric, b):
            rows.append((metric, "work" if metric in WORK else "overhead", (metric,)))
            parts = sorted({name for record in (*a[:1], *b[:1]) for name in record if name.startswith(f"{metric}/")})
            rows += [(part, "part", (part,)) for part in parts]
    return rows


def _has(metric: str, records: Sequence[Record]) -> bool:
    return any((record.get(metric) or 0.0) > 0 for record in records)


def _row(name: str, kind: Kind, first: np.ndarray, second: np.ndarray, resampled: np.ndarray) -> Row:
    sums = first[resampled].mean(axis=1), second[resampled].mean(axis=1)
    has_ratio = bool(first.sum() > 0 and (sums[0] > 0).all())
    return Row(
        name,
        kind,
        float(first.mean()),
        float(second.mean()),
        float(second.sum() / first.sum()) if has_ratio else None,
        _interval(sums[1] / sums[0]) if has_ratio else None,
        _interval(sums[1] - sums[0]),
    )


def _seconds(metrics: tuple[str, ...], records: Sequence[Record]) -> np.ndarray:
    return np.array([sum(record.get(metric) or 0.0 for metric in metrics) for record in records])


def _interval(values: np.ndarray) -> Interval:
    tail = 50 * (1 - COVERAGE)
    low, high = np.percentile(values, (tail, 100 - tail))
    return Interval(float(low), float(high))


def _overhead(records: Sequence[Record]) -> float:
    total = fmean(record.get(TOTAL) or 0.0 for record in records)
    work = fmean(sum(record.get(name) or 0.0 for name in WORK) for record in records)
    return 1 - work / total if total else 0.0


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}"
