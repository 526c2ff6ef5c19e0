"""From figures, a reference and the settings to what is slow and why."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo.matrix.diagnose.causes import Cause, applying
from grpo.matrix.diagnose.patterns import patterns
from grpo.matrix.judge.attribution import OTHER_PHASE, attribute
from grpo.matrix.judge.evidence import OTHER, PHASE_METRICS, TOKENS, TOTAL
from grpo.matrix.judge.machine import Machine
from grpo.matrix.judge.verdict import Slowest
from grpo.matrix.judge.words import number, parts_words, per_cent, phase_words, signed
from grpo.matrix.schema import Reference
from grpo.telemetry.journal import to_json

SCHEMA_VERSION = 1
SLOW_SHARE = 0.10  # of the total's difference
SLOW_RATIO = 1.03
LARGE_SHARE = 0.20  # of the step, where there is no reference


@dataclass(frozen=True)
class Observed:
    """What is diagnosed: figures by metric, and what is known besides."""

    name: str
    values: Mapping[str, float]
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)  # medians of any other metric
    slowest: Mapping[str, Slowest] = field(default_factory=dict)


@dataclass(frozen=True)
class PhaseState:
    """One phase of the step. Seconds; without a reference only `value` and `of_total`."""

    phase: str
    value: float
    of_total: float
    reference: float | None = None
    seconds: float | None = None  # more than the reference
    ratio: float | None = None  # None where the reference has none
    slow: bool = False
    detail: str = ""  # its parts and slowest rank
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """What is slow, in which part, by how much, by what."""

    name: str
    sentence: str
    machine: str  # machine, software, unknown
    machine_words: tuple[str, ...]
    patterns: tuple[str, ...]
    phases: tuple[PhaseState, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        phases = [{**asdict(phase), "causes": [cause.model_dump() for cause in phase.causes]} for phase in self.phases]
        plain: dict[str, Any] = to_json({"schema_version": SCHEMA_VERSION, **asdict(self), "phases": phases})
        return plain


def diagnose(seen: Observed, reference: Reference | None, machine: Machine) -> Diagnosis:
    """Say why a run takes longer than its reference; without one, where its time goes."""
    has_reference = reference is not None and TOTAL in reference.values
    phases = _compared(seen, reference) if reference is not None and has_reference else _shares(seen)
    phases = tuple(_with_causes(phase, seen) for phase in phases)
    ratios = {phase.phase: phase.ratio for phase in phases if phase.ratio is not None}
    longer = None
    if reference is not None and TOKENS in reference.values and TOKENS in seen.values:
        longer = seen.values[TOKENS] / reference.values[TOKENS].value
    is_slow = any(phase.slow for phase in phases) and has_reference
    words, verdict = _machine_words(machine)
    return Diagnosis(
        seen.name,
        _sentence(seen, reference if has_reference else None, phases),
        verdict,
        words,
        tuple(patterns(ratios, longer)) if is_slow else (),
        phases,
    )


def _compared(seen: Observed, reference: Reference) -> tuple[PhaseState, ...]:
    total = seen.values[TOTAL]
    whole = total - reference.values[TOTAL].value
    return tuple(
        PhaseState(
            share.phase,
            share.value,
            share.value / total if total else 0.0,
            share.reference,
            share.seconds,
            share.value / share.reference if share.reference > 0 else None,
            slow=whole > 0
            and share.seconds >= SLOW_SHARE * whole
            and (share.reference <= 0 or share.value > SLOW_RATIO * share.reference),
            detail=parts_words(share),
        )
        for share in attribute(seen.values, reference, seen.slowest)
    )


def _shares(seen: Observed) -> tuple[PhaseState, ...]:
    total = seen.values.get(TOTAL, 0.0)
    rows = {metric.removeprefix("timing/"): seen.values[metric] for metric in PHASE_METRICS if seen.values.get(metric)}
    rows[OTHER_PHASE] = seen.values.get(OTHER, total - sum(rows.values()))
    states = [
        PhaseState(phase, value, value / total if total else 0.0, slow=bool(total) and value >= LARGE_SHARE * total)
        for phase, value in rows.items()
    ]
    return tuple(sorted(states, key=lambda state: -state.value))


def _with_causes(phase: PhaseState, seen: Observed) -> PhaseState:
    if not phase.slow:
        return phase
    return PhaseState(**{**vars(phase), "causes": applying(phase.phase, seen.config, seen.metrics)})


def _sentence(seen: Observed, reference: Reference | None, phases: tuple[PhaseState, ...]) -> str:
    total = seen.values.get(TOTAL)
    if total is None:
        return "there is no total: which part of it is slow cannot be said"
    if reference is None:
        largest = ", ".join(f"{phase_words(one.phase)} {number(one.value)} s" for one in phases if one.slow)
        return f"{number(total)} s a step, and no reference to hold it against: most of it is {largest or 'spread'}"
    before = reference.values[TOTAL].value
    difference = f"{signed(total - before)} s, {per_cent(total / before - 1)}"
    change = f"{number(total)} s a step against {number(before)} s ({difference})"
    slow = [one for one in phases if one.slow]
    if not slow:
        return f"{change}: nothing is slow"
    return f"{change}: {', '.join(map(slow_words, slow))}"


def slow_words(phase: PhaseState) -> str:
    """`refit is 1.86x (26 s against 14 s, +12 s)`."""
    assert phase.reference is not None
    assert phase.seconds is not None
    factor = "new" if phase.ratio is None else f"{phase.ratio:.2f}x"
    return (
        f"{phase_words(phase.phase)} is {factor} ({number(phase.value)} s against {number(phase.reference)} s, "
        f"{signed(phase.seconds)} s)"
    )


def _machine_words(machine: Machine) -> tuple[tuple[str, ...], str]:
    if machine.health == "bad":
        away = f"run it again without {', '.join(machine.exclude)}" if machine.exclude else "run it on other nodes"
        return (*machine.problems, away), "machine"
    if machine.health == "good":
        return (
            "the canary finds the nodes as they should be: the cause is software, or the network beyond them",
        ), "software"
    return machine.problems, "unknown"
