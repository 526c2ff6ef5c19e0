"""What the figures are to reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TRAINING_RATIO = 1.02  # seconds of the worker over those of the bare loop, medians
SCORING_RATIO = 0.9  # speed of the log-prob pass over that of a bare forward pass
MFU = 0.45  # of the large shape
AROUND = 0.02  # share of a step that is neither generation, log-probs, training nor refit
MEMORY_ERROR = 0.10

LARGE = "dtensor-8b"


def judged(record: dict[str, Any]) -> list[tuple[str, float, bool]]:
    """What a record says of the goals: figure's name, figure, whether it reaches the goal."""
    kind, found = record["kind"], []
    if kind == "training" and "ratio" in record:
        value = record["ratio"]["of_medians"]
        found.append((f"training time over a bare loop's, at most {TRAINING_RATIO}", value, value <= TRAINING_RATIO))
    if kind == "training" and record["part"] == LARGE:
        value = record["mfu"]["ours"]
        found.append((f"MFU, at least {MFU}", value, value >= MFU))
    if kind == "scoring":
        value = record["ratio"]["of_medians"]
        found.append(
            (f"speed of log-probs over a forward pass's, at least {SCORING_RATIO}", value, value >= SCORING_RATIO)
        )
    if kind == "step":
        value = record["around"]["median"]
        found.append((f"share of a step around the work, at most {AROUND}", value, value <= AROUND))
    if kind == "memory" and record["error"] is not None:
        value = record["error"]
        found.append(
            (f"planned over measured peak memory less one, within {MEMORY_ERROR}", value, abs(value) <= MEMORY_ERROR)
        )
    return found


def missed(records: Sequence[dict[str, Any]]) -> list[str]:
    """Goals that some record misses."""
    return [
        f"{record['part']}: {name}: {value:.3f}"
        for record in records
        for name, value, reached in judged(record)
        if not reached
    ]
