"""The figures of a run that people ask for first. Pure: from a `Run` that was read, to numbers."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo.telemetry.reader import Run
from grpo.telemetry.timers import PHASES

WARM_UP_STEPS = 5  # the judge's figure; again after every resume
REWARD_WINDOW = 20
# Steps with one of these are timed apart: they are not what a step usually costs.
_OCCASIONAL = ("validation", "checkpoint")


@dataclass(frozen=True)
class PhaseRow:
    """One line of the phase table; seconds."""

    name: str
    depth: int  # 0: phase, 1: part of the phase above
    median: float  # over the counted steps; of validation and checkpoint, over the steps that had one
    share: float | None  # of the counted steps' total; None where the phase is outside the counted steps
    total: float  # over the whole run
    steps: int  # in which it took any time


@dataclass(frozen=True)
class Timing:
    """Where the time of a run went. `rows` sum to `total` but for parts, which sum to at most their phase."""

    rows: list[PhaseRow]
    counted_steps: int
    rule: str  # which steps are counted, in words
    median_step: float | None
    total: float


@dataclass(frozen=True)
class Summary:
    """Key numbers; None where the run did not measure them."""

    steps: int
    last_step: int | None
    max_steps: int | None
    accuracy: float | None
    accuracy_step: int | None
    best_accuracy: float | None
    best_accuracy_step: int | None
    chance: float | None
    reward_first: float | None
    reward_last: float | None
    tokens_per_second_per_gpu: float | None
    mfu: float | None
    completion_length: float | None
    truncated_fraction: float | None
    peak_memory_gib: float | None
    reward_failures: float
    not_finite: list[str]  # "metric at step n", the first of each metric
    timing: Timing


def summarise(run: Run) -> Summary:
    """Work out the key numbers of a run: finished, failed, or still going on."""
    accuracy = finite(run, "validation/accuracy")
    best = max(accuracy, key=lambda pair: pair[1], default=(None, None))
    last = accuracy[-1] if accuracy else (None, None)
    rewards = [value for _, value in finite(run, "train/reward")]
    counted, rule = counted_steps(run)
    return Summary(
        steps=sum(step > 0 for step in run.steps),  # step 0 is the validation before the first
        last_step=run.steps[-1] if run.steps else None,
        max_steps=_fact(run, "max_steps", int),
        accuracy=last[1],
        accuracy_step=last[0],
        best_accuracy=best[1],
        best_accuracy_step=best[0],
        chance=_fact(run, "chance", float),
        reward_first=_mean(rewards[:REWARD_WINDOW]),
        reward_last=_mean(rewards[-REWARD_WINDOW:]),
        tokens_per_second_per_gpu=_median_of(counted, "performance/tokens_per_second_per_gpu"),
        mfu=_median_of(counted, "performance/mfu"),
        completion_length=_median_of(run.metrics[-REWARD_WINDOW:], "rollout/generated_tokens_per_sample"),
        truncated_fraction=_median_of(run.metrics[-REWARD_WINDOW:], "rollout/truncated_fraction"),
        peak_memory_gib=_peak_memory(run),
        reward_failures=sum(value for _, value in finite(run, "rollout/reward_failures")),
        not_finite=_not_finite(run),
        timing=_timing(run, counted, rule),
    )


def finite(run: Run, name: str) -> list[tuple[int, float]]:
    """(step, value) of one metric, without NaN and infinity."""
    return [(step, value) for step, value in zip(*run.series(name), strict=True) if math.isfinite(value)]


def counted_steps(run: Run) -> tuple[list[dict[str, Any]], str]:
    """The steps that a speed figure is taken over, and the rule in words.

    After WARM_UP_STEPS from the start and from each resume, without validation and checkpoint; in a run too short for
    that, all steps.
    """
    starts = [run.steps[0] if run.steps else 0, *(resume.step + 1 for resume in run.manifest.resumes)]
    counted = [
        record
        for record in run.metrics
        if not any(start <= record["step"] < start + WARM_UP_STEPS for start in starts)
        and not any(record.get(f"timing/{phase}") for phase in _OCCASIONAL)
    ]
    if counted:
        return counted, f"steps after {WARM_UP_STEPS} of warm-up, without validation or checkpoint"
    return run.metrics, "all steps (too few for a warm-up)"


def _timing(run: Run, counted: Sequence[dict[str, Any]], rule: str) -> Timing:
    whole = sum(value for _, value in finite(run, "timing/total"))
    counted_total = sum(record.get("timing/total") or 0.0 for record in counted)
    rows: list[PhaseRow] = []
    for phase in (*PHASES, "other"):
        prefix = f"timing/{phase}/"
        parts = [name for name in run.metric_names if name.startswith(prefix)]
        for name, depth in ((f"timing/{phase}", 0), *((part, 1) for part in parts)):
            values = [value for _, value in finite(run, name)]
            taken = [value for value in values if value != 0]
            if not taken:
                continue
            occasional = phase in _OCCASIONAL
            usual = [value for record in counted if (value := record.get(name)) is not None]
            rows.append(
                PhaseRow(
                    name=name.removeprefix(prefix if depth else "timing/"),
                    depth=depth,
                    median=statistics.median(taken if occasional or not usual else usual),
                    share=sum(usual) / counted_total if usual and counted_total and sum(usual) else None,
                    total=sum(values),
                    steps=len(taken),
                )
            )
    return Timing(rows, len(counted), rule, _median_of(counted, "timing/total"), whole)


def _fact(run: Run, name: str, kind: type[Any]) -> Any:
    """A number from the manifest's facts; None where it is absent or not one."""
    value = run.manifest.facts.get(name)
    return kind(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _median_of(records: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [value for record in records if (value := record.get(name)) is not None and math.isfinite(value)]
    return statistics.median(values) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _peak_memory(run: Run) -> float | None:
    for name in ("memory/allocated_gib", "memory/rss_gib"):
        values = [value for _, value in finite(run, name)]
        if any(values):
            return max(values)
    return None


def _not_finite(run: Run) -> list[str]:
    found: dict[str, int] = {}
    for record in run.metrics:
        for name, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                found.setdefault(name, record["step"])
    return [f"{name} at step {step}" for name, step in found.items()]
