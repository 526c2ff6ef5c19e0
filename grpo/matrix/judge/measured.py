"""What a benchmark measured beside a run, against the bounds of its case."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo.matrix.judge.bounds import within
from grpo.matrix.judge.verdict import BoundResult, Finding
from grpo.matrix.judge.words import number
from grpo.matrix.schema import Benchmark, Bound

Record = Mapping[str, Any]


def check_benchmark(benchmark: Benchmark | None, records: Sequence[Record]) -> tuple[list[BoundResult], list[Finding]]:
    """Each bound's worst figure, and a failure for each that does not hold or was not measured."""
    if benchmark is None:
        return [], []
    results = [_result(name, bound, records) for name, bound in benchmark.bounds.items()]
    failures = [_failure(one) for one in results if not one.holds]
    broken = [record for record in records if record.get("kind") == "failure"]
    if broken:
        last = str(broken[0].get("traceback", "")).strip().splitlines()
        message = f"{benchmark.module}: a part failed: {last[-1] if last else 'it does not say why'}"
        failures.append(Finding(7, "benchmark", message, "crash"))
    return results, failures


def figures_of(name: str, records: Sequence[Record]) -> list[float]:
    """The figures of KIND.FIELD (fields may be nested) in the records that have them."""
    kind, *way = name.split(".")
    found = []
    for record in records:
        value: Any = record if record.get("kind") == kind else None
        for field in way:
            value = value.get(field) if isinstance(value, Mapping) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append(float(value))
    return found


def _result(name: str, bound: Bound, records: Sequence[Record]) -> BoundResult:
    values = figures_of(name, records)
    if not values:
        return BoundResult(name, "every", None, bound.lower, bound.upper, holds=False)
    outside = [value for value in values if not within(value, bound)]
    worst = outside[0] if outside else max(values) if bound.upper is not None else min(values)
    return BoundResult(name, "every", worst, bound.lower, bound.upper, holds=not outside)


def _failure(result: BoundResult) -> Finding:
    if result.value is None:
        return Finding(5, result.metric, f"{result.metric} was not measured", "correctness")
    limits = [f"at least {number(result.lower)}"] if result.lower is not None else []
    limits += [f"at most {number(result.upper)}"] if result.upper is not None else []
    message = f"{result.metric} = {number(result.value)}: the case asks for {' and '.join(limits)}"
    return Finding(2, result.metric, message, "regression")
