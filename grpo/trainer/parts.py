"""What the training loop is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from grpo.checkpoint.rank_state import RankStates
from grpo.checkpoint.saver import Saver
from grpo.placement.placement import Placement
from grpo.refit.factory import Refit
from grpo.rollout.source import RolloutSource
from grpo.telemetry.run_directory import RunDirectory
from grpo.telemetry.timers import PhaseTimer
from grpo.trainer.evaluation import Evaluator
from grpo.trainer.throughput import Throughput
from grpo.workers.policy.group import RankSeconds
from grpo.workers.protocol import Policy


class StepObserver(Protocol):
    """Sees every finished step: the console, TensorBoard and other loggers."""

    def __call__(self, step: int, values: Mapping[str, float], /) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What the loop is made of."""

    policy: Policy
    source: RolloutSource
    refit: Refit
    placement: Placement
    evaluator: Evaluator | None
    ranks: RankStates
    saver: Saver | None
    run: RunDirectory
    timer: PhaseTimer
    throughput: Throughput
    observers: tuple[StepObserver, ...] = ()
    measures: tuple[Callable[[], Mapping[str, float]], ...] = ()  # what the parts count themselves, since asked last
    rank_seconds: Callable[[], RankSeconds] | None = None  # of a policy in workers, since asked last
    say: Callable[[str], None] = lambda _: None  # a line for people
    before_save: Callable[[], None] = lambda: None  # raises where this run may not save any more
