"""Comparisons as sentences and tables."""

from grpo.matrix.compare.abba import SIGNIFICANT, SLOWER, Turns
from grpo.matrix.compare.matched import COMPUTE, COVERAGE, LEAST_PAIRS, Interval, Matched, Row
from grpo.matrix.judge.words import metric_words, number, per_cent, signed
from grpo.matrix.show.sheet import Grid, Sheet

_KINDS = {"total": "", "compute": "compute", "work": "work", "overhead": "overhead", "part": ""}


def matched_sheet(result: Matched) -> Sheet:
    """The compute ratio first; then how well the steps were paired; then every row."""
    compute = result.compute
    assert compute.ratio is not None
    heading = (
        f"{result.second} takes {_times(compute.ratio)} the compute of {result.first} "
        f"({_percent_words()} {_ratio_interval(compute)}) for the same tokens"
    )
    used = " and ".join(metric_words(name) for name in COMPUTE if _has(result, name))
    lines = [
        (
            f"paired by computed tokens: {result.pairs} steps, of {result.steps[0]} and {result.steps[1]}; a pair "
            f"differs by {per_cent(result.token_difference)} on average, {100 * result.worst_difference:.2g} % at most "
            f"(allowed {100 * result.tolerance:g} %); {number(round(result.tokens[0]))} and "
            f"{number(round(result.tokens[1]))} tokens a step"
        ),
        (
            f"compute is {used}; what is neither that, generation nor refit takes "
            f"{100 * result.overhead_share[0]:.1f} % of the step and {100 * result.overhead_share[1]:.1f} %"
        ),
    ]
    if None not in result.outside:
        first, second = (number(round(value or 0.0, 1)) for value in result.outside)
        lines.append(f"outside the steps, once a run (set-up and end): {first} s and {second} s")
    if result.pairs < LEAST_PAIRS:
        lines.append(f"fewer than {LEAST_PAIRS} pairs: the intervals say little")
    return Sheet(
        heading,
        lines,
        [
            Grid(
                "seconds a step, mean of the pairs",
                ("", "", result.first, result.second, "difference", _percent_words(), "ratio", _percent_words()),
                [_cells(row) for row in result.rows],
                texts=(0, 1),
            )
        ],
    )


def _has(result: Matched, name: str) -> bool:
    return any(row.name == name and row.first > 0 and row.second > 0 for row in result.rows)


def _percent_words() -> str:
    return f"{100 * COVERAGE:.0f} %"


def _cells(row: Row) -> tuple[str, ...]:
    name = f"  {row.name.removeprefix('timing/')}" if row.kind == "part" else metric_words(row.name)
    interval = row.difference_interval
    return (
        name, _KINDS[row.kind], f"{row.first:.4g}", f"{row.second:.4g}", signed(row.difference),
        f"{signed(interval.low)} .. {signed(interval.high)}",
        "" if row.ratio is None else f"{row.ratio:.3f}", _ratio_interval(row),
    )  # fmt: skip


def _ratio_interval(row: Row) -> str:
    interval: Interval | None = row.ratio_interval
    return "" if interval is None else f"{interval.low:.3f} .. {interval.high:.3f}"


def _times(ratio: float) -> str:
    return f"{ratio:.3f} x"


def turns_sheet(result: Turns) -> Sheet:
    """Whether the new one is slower, and each metric's ratio."""
    total = result.rows[0]
    verdict = "slower" if result.slower else "not slower"
    rows = [
        (
            metric_words(row.metric),
            f"{row.median:.3f}",
            f"{min(row.ratios):.3f}",
            f"{max(row.ratios):.3f}",
            f"{row.p:.4f}",
        )
        for row in result.rows
    ]
    return Sheet(
        f"{verdict}: the median ratio of the total is {total.median:.3f} over {result.pairs} pairs, p = {total.p:.4f}",
        [f"slower is a median above {SLOWER:g} with p below {SIGNIFICANT:g} (exact one-sided sign-flip test)"],
        [Grid("new over old", ("", "median", "least", "most", "p"), rows)],
    )
