"""Where the loop gets its trajectories from. Generation on demand and the replay buffer are two sources of one loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from grpo.errors import CheckpointError
from grpo.rollout.trajectory import Trajectory
from grpo.telemetry.timers import PhaseTimer


@dataclass(frozen=True)
class Rollout:
    """The trajectories of one step, the completions of a group one after another."""

    trajectories: list[Trajectory]
    generated_samples: int  # all that the engine sampled for this step, dropped groups included
    generated_tokens: int
    prompt_tokens: int  # of all samples, each counted with its own prompt
    metrics: Mapping[str, float] = field(default_factory=dict)  # what only this source knows, under `rollout/`


class RolloutSource(Protocol):
    """Gives one step's trajectories, accounting its time to the phases data, generation and rewards."""

    @property
    def exhausted(self) -> bool:
        """Whether `next_rollout` would give None."""
        ...

    def next_rollout(self, timer: PhaseTimer) -> Rollout | None:
        """The next step's trajectories; None when the prompts are used up."""
        ...

    def begin(self) -> None:
        """The next rollout begins here, as far as `go_back` is concerned."""
        ...

    def go_back(self) -> None:
        """Undo what `next_rollout` took since `begin`, also where an exception has interrupted it."""
        ...

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name and JSON values from which `load_state` continues: nothing drawn twice, nothing skipped."""
        ...

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], /) -> None:
        """Take back what `state` gave."""
        ...

    def close(self) -> None:
        """End what runs between the steps."""
        ...


def of_other_source(*, saved_async: bool) -> CheckpointError:
    """What to say of a state that the other kind of source saved."""
    return CheckpointError(
        f"grpo.async_grpo.enabled: the checkpoint was saved with {str(saved_async).lower()}, this run has "
        f"{str(not saved_async).lower()}; set {str(saved_async).lower()} to go on, or begin anew with --fresh"
    )
