"""Where a run is, and how it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EndReason = Literal["steps", "epochs", "reward", "stopped"]


@dataclass
class Progress:
    """Where the run is; what a checkpoint holds of the loop itself."""

    step: int = 0
    recent_rewards: deque[float] = field(default_factory=deque)
    accuracy: float | None = None
    validation_pending: bool = False  # a stop came before the step's validation was through: the next run makes it good

    def values(self) -> dict[str, Any]:
        """JSON values of which `of` makes the same."""
        return {
            "step": self.step,
            "recent_rewards": list(self.recent_rewards),
            "accuracy": self.accuracy,
            "validation_pending": self.validation_pending,
        }

    @classmethod
    def of(cls, values: Mapping[str, Any], window: int) -> Progress:
        return cls(
            int(values["step"]),
            deque(values["recent_rewards"], maxlen=window),
            values["accuracy"],
            bool(values.get("validation_pending", False)),
        )


@dataclass(frozen=True)
class Outcome:
    """How the loop ended."""

    reason: EndReason
    steps: int
    accuracy: float | None  # of the last validation
    stopped_by: str | None = None  # the name of a signal, or of the key of the time limit
    saved: bool = False  # whether the last step is in a checkpoint
