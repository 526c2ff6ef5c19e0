"""How far a figure may be from its reference."""

from dataclasses import dataclass

from grpo.matrix.judge.evidence import TOKENS, TOTAL
from grpo.matrix.judge.verdict import Comparison, Status
from grpo.matrix.schema import Figure, Reference

# Rule 3.
LEAST = 0.03
SPREADS = 4.0
FAST_SIDE = 2.0
WIDEST_GATING = 0.10
PUBLISHED = 0.10
PUBLISHED_OF_TOTAL = 0.05
GATING_RUNS = 5
SPREAD_RUNS = 3
# Rule 9.
MEMORY = 0.02

_ROUNDING = 1e-9  # of a value on the bound itself


@dataclass(frozen=True)
class Band:
    """Bounds in the figure's unit. `gates`: the band is narrow enough to decide."""

    lower: float | None
    upper: float | None
    gates: bool


def higher_is_worse(metric: str) -> bool:
    """Seconds and bytes are; rates are not."""
    return not metric.startswith("performance/")


def band_of(metric: str, reference: Reference) -> Band:
    """The band of one metric of a reference."""
    figure = reference.values[metric]
    if metric == TOKENS:
        return Band(None, None, gates=False)
    if metric.startswith("memory/"):
        upper = figure.value * (1 + MEMORY) if figure.upper is None else figure.upper
        return Band(None, upper, gates=True)
    if reference.source.kind == "published":
        slow = _published(metric, figure, reference.values.get(TOTAL))
    else:
        slow = max(LEAST, SPREADS * (figure.spread or 0.0)) * figure.value
    fast = FAST_SIDE * slow
    below, above = (fast, slow) if higher_is_worse(metric) else (slow, fast)
    # Nothing takes less than no time: such a bound would be none.
    lower = figure.lower if figure.lower is not None else figure.value - below if below < figure.value else None
    upper = figure.value + above if figure.upper is None else figure.upper
    worse_by = (upper - figure.value) if higher_is_worse(metric) else (figure.value - (lower or 0.0))
    narrow = worse_by <= WIDEST_GATING * figure.value * (1 + _ROUNDING)
    return Band(lower, upper, gates=narrow or reference.source.kind == "published")


def _published(metric: str, figure: Figure, total: Figure | None) -> float:
    """Whole seconds without a spread: a small phase must besides move the step noticeably."""
    of_itself = PUBLISHED * figure.value
    if metric == TOTAL or total is None or not metric.startswith("timing/"):
        return of_itself
    return max(of_itself, PUBLISHED_OF_TOTAL * total.value)


def compare(metric: str, value: float, reference: Reference, *, may_gate: bool) -> Comparison:
    """One metric against its band. `may_gate` False: the comparison only informs."""
    figure, band = reference.values[metric], band_of(metric, reference)
    return Comparison(
        metric=metric,
        value=value,
        reference=figure.value,
        lower=band.lower,
        upper=band.upper,
        unit=figure.unit,
        status=_status(metric, value, band),
        gates=may_gate and band.gates,
    )


def _status(metric: str, value: float, band: Band) -> Status:
    if band.lower is None and band.upper is None:
        return "informs"
    above = band.upper is not None and value > band.upper * (1 + _ROUNDING)
    below = band.lower is not None and value < band.lower * (1 - _ROUNDING)
    if above or below:
        return "worse" if above == higher_is_worse(metric) else "better"
    return "within"


def provisional(reference: Reference) -> str | None:
    """Why a measured reference does not gate yet; None where it does."""
    source = reference.source
    if source.kind != "measured" or len(source.runs) >= GATING_RUNS:
        return None
    return f"its reference is provisional: {len(source.runs)} runs, and {GATING_RUNS} are needed to gate"
