"""The absolute bounds of a case: correctness, never timing (rule 9)."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from grpo.matrix.judge.verdict import BoundResult, Finding
from grpo.matrix.judge.words import number
from grpo.matrix.schema import Bound

Record = Mapping[str, Any]


def check_bounds(
    bounds: Mapping[str, Bound], judged: Sequence[Record], training: Sequence[Record]
) -> tuple[list[BoundResult], list[Finding]]:
    """Each bound's result, and a failure for each that does not hold. `last` is of all training steps."""
    results = [_result(metric, bound, judged, training) for metric, bound in bounds.items()]
    failures = [
        Finding(9, one.metric, _message(one, bounds[one.metric]), "correctness") for one in results if not one.holds
    ]
    return results, failures


def _result(metric: str, bound: Bound, judged: Sequence[Record], training: Sequence[Record]) -> BoundResult:
    values = _values(metric, bound, training[-1:] if bound.statistic == "last" else judged)
    if bound.statistic == "median" and values:
        values = [median(values)]
    if not values:
        return BoundResult(metric, bound.statistic, None, bound.lower, bound.upper, holds=False)
    outside = [value for value in values if not within(value, bound)]
    worst = outside[0] if outside else max(values) if bound.upper is not None else min(values)
    return BoundResult(metric, bound.statistic, worst, bound.lower, bound.upper, holds=not outside)


def _values(metric: str, bound: Bound, records: Sequence[Record]) -> list[float]:
    values = []
    for record in records:
        value = record.get(metric)
        if bound.share_of is not None and value is not None:
            whole = record.get(bound.share_of)
            value = value / whole if whole else None
        if value is not None:
            values.append(value)
    return values


def within(value: float, bound: Bound) -> bool:
    """Whether a figure keeps a bound."""
    # Written so that NaN is outside.
    return (bound.lower is None or value >= bound.lower) and (bound.upper is None or value <= bound.upper)


def _message(result: BoundResult, bound: Bound) -> str:
    name = result.metric if bound.share_of is None else f"{result.metric} / {bound.share_of}"
    if result.value is None:
        return f"{name} was not measured in any step that counts"
    limits = [f"at least {number(result.lower)}"] if result.lower is not None else []
    limits += [f"at most {number(result.upper)}"] if result.upper is not None else []
    return f"{name} = {number(result.value)} ({result.statistic}): the case asks for {' and '.join(limits)}"
