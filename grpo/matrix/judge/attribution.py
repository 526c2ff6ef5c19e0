"""Which phases explain the difference of the total step."""

from collections.abc import Mapping, Sequence

from grpo.matrix.judge.evidence import OTHER, PHASE_METRICS, TOTAL
from grpo.matrix.judge.verdict import Share, Slowest
from grpo.matrix.schema import Reference

OTHER_PHASE = "other"


def attribute(
    values: Mapping[str, float], reference: Reference, slowest: Mapping[str, Slowest] | None = None
) -> tuple[Share, ...]:
    """The difference of the total, divided over the phases that both sides have; largest first.

    What these leave of the total on each side is `other`, so that the shares sum to the difference whatever was
    measured. Empty where one side has no total.
    """
    if TOTAL not in values or TOTAL not in reference.values:
        return ()
    phases = [metric for metric in reference.values if metric in PHASE_METRICS and metric in values]
    pairs = {metric.removeprefix("timing/"): (values[metric], reference.values[metric].value) for metric in phases}
    total, reference_total = values[TOTAL], reference.values[TOTAL].value
    pairs[OTHER_PHASE] = (
        total - sum(value for value, _ in pairs.values()),
        reference_total - sum(value for _, value in pairs.values()),
    )
    whole = total - reference_total
    shares = [
        Share(
            phase,
            value,
            before,
            value - before,
            (value - before) / whole if whole else None,
            _parts(phase, values, phases),
            (slowest or {}).get(f"timing/{phase}"),
        )
        for phase, (value, before) in pairs.items()
    ]
    return tuple(sorted(shares, key=lambda one: -abs(one.seconds)))


def _parts(phase: str, values: Mapping[str, float], compared: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """A phase's timed parts; of `other`, the phases that the reference lacks, and what no phase of the run covers."""
    if phase == OTHER_PHASE:
        names = {metric.removeprefix("timing/"): metric for metric in PHASE_METRICS if metric not in compared}
        names["no phase"] = OTHER
    else:
        prefix = f"timing/{phase}/"
        names = {metric.removeprefix(prefix): metric for metric in values if metric.startswith(prefix)}
    found = [(name, values[metric]) for name, metric in names.items() if values.get(metric, 0.0) > 0]
    return tuple(sorted(found, key=lambda part: -part[1]))
