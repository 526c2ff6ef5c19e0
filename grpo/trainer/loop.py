"""The one training loop. Sync and async, colocated and separate differ in the parts plugged in, not here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from grpo.batching.batch import Batch
from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.rng import capture_rng, restore_rng
from grpo.checkpoint.signals import StopRequest
from grpo.config.schema import Config
from grpo.placement.placement import Placement
from grpo.refit.local import LocalRefit
from grpo.rollout.source import Rollout, RolloutSource
from grpo.telemetry.memory import memory_metrics
from grpo.telemetry.run_directory import RunDirectory
from grpo.telemetry.timers import PhaseTimer
from grpo.trainer.advantages import training_batch
from grpo.trainer.evaluation import Evaluation, Evaluator
from grpo.trainer.step_metrics import (
    reward_metrics,
    rollout_metrics,
    update_metrics,
)
from grpo.trainer.throughput import Throughput
from grpo.workers.groups.watchdog import watched
from grpo.workers.policy.group import RankSeconds
from grpo.workers.protocol import Policy

EndReason = Literal["steps", "epochs", "reward", "signal"]


class StepObserver(Protocol):
    """Sees every finished step: the console, TensorBoard and other loggers."""

    def __call__(self, step: int, values: Mapping[str, float], /) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What the loop is made of."""

    policy: Policy
    source: RolloutSource
    refit: LocalRefit
    placement: Placement
    evaluator: Evaluator | None
    checkpoints: CheckpointManager | None
    run: RunDirectory
    timer: PhaseTimer
    throughput: Throughput
    observers: tuple[StepObserver, ...] = ()
    measures: tuple[Callable[[], Mapping[str, float]], ...] = ()  # what the parts count themselves, since asked last
    rank_seconds: Callable[[], RankSeconds] | None = None  # of a policy in workers, since asked last


@dataclass
class Progress:
    """Where the run is; what a checkpoint holds of the loop itself."""

    step: int = 0
    recent_rewards: deque[float] = field(default_factory=deque)
    accuracy: float | None = None

    def values(self) -> dict[str, Any]:
        return {"step": self.step, "recent_rewards": list(self.recent_rewards), "accuracy": self.accuracy}

    @classmethod
    def of(cls, values: Mapping[str, Any], window: int) -> Progress:
        return cls(int(values["step"]), deque(values["recent_rewards"], maxlen=window), values["accuracy"])


@dataclass(frozen=True)
class Outcome:
    """How the loop ended."""

    reason: EndReason
    steps: int
    accuracy: float | None  # of the last validation
    signal: str | None = None
    saved: bool = False  # whether the last step is in a checkpoint


class Trainer:
    """Runs steps until a limit, a reward, the end of the prompts or a signal."""

    def __init__(self, parts: Parts, config: Config) -> None:
        self._parts = parts
        parts.timer.entering = parts.placement.enter  # no phase begins before everything is where it needs it
        self._config = config
        self._progress = Progress(recent_rewards=deque(maxlen=config.grpo.stop_window))
        self._unpublished: dict[str, float] | None = None
        self._unpublished_ranks: RankSeconds | None = None
        self._validated_step: int | None = None
        self._saved_step: int | None = None

    @property
    def step(self) -> int:
        """Steps done."""
        return self._progress.step

    def run(self, stop: StopRequest) -> Outcome:
        """Train to the end, or save and return when `stop` is requested."""
        if self.step == 0 and self._config.grpo.val_at_start and self._parts.evaluator is not None:
            with watched(self._config.cluster.step_timeout_s), self._parts.timer.step() as times:
                metrics = self._validate(0)
            self._unpublished = {**times, **metrics}
        reason = self._finished(stop)
        while reason is None:
            step = self.step + 1
            with watched(self._config.cluster.step_timeout_s), self._parts.timer.step() as times:
                self._publish()
                done = self._step(step, stop)
                if done is None:
                    self._close_without_step()
            if done is None:
                reason = "epochs"
                break
            rollout, batch, metrics, reason = done
            self._unpublished = {**times, **metrics, **self._parts.throughput.metrics(rollout, batch, times)}
            self._unpublished_ranks = None if self._parts.rank_seconds is None else self._parts.rank_seconds()
        self._publish()
        return Outcome(
            reason, self.step, self._progress.accuracy, stop.requested if reason == "signal" else None,
            saved=self._saved_step == self.step,
        )  # fmt: skip

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's content."""
        self._parts.policy.load_state(_below("policy/", tensors), values["policy"])
        self._parts.source.load_state(_below("source/", tensors), values["source"])
        self._progress = Progress.of(values["trainer"], self._config.grpo.stop_window)
        parts = ("policy/", "source/")
        restore_rng({name: each for name, each in tensors.items() if not name.startswith(parts)}, values["rng"])
        self._saved_step = self.step

    def _close_without_step(self) -> None:
        """What the last step would have done, had it been known to be the last.

        Dynamic sampling may find no group to keep in the prompts that are left. The events tell of this validation.
        """
        metrics: dict[str, float] = {}
        if self._config.grpo.val_at_end and self._parts.evaluator is not None and self._validated_step != self.step:
            metrics = self._validate(self.step)
        wanted = self._parts.checkpoints is not None and self._config.checkpointing.save_at_end
        if wanted and self.step > 0 and self._saved_step != self.step:
            self._save(self.step, metrics)

    def _step(self, step: int, stop: StopRequest) -> tuple[Rollout, Batch, dict[str, float], EndReason | None] | None:
        """A step's rollout, batch and metrics, and why it is the last one, if it is; None: no prompts are left."""
        parts, timer = self._parts, self._parts.timer
        parts.refit.ensure_current(timer)
        rollout = parts.source.next_rollout(timer)
        if rollout is None:
            return None
        batch, rewards = training_batch(rollout.trajectories, parts.policy, self._config, timer)
        assert batch.advantages is not None
        size = self._config.policy.train_global_batch_size
        with timer.phase("policy_training"):
            rows = range(len(batch))
            updates = [parts.policy.train(batch.select(rows[at : at + size])) for at in range(0, len(batch), size)]
        self._progress.step = step
        metrics = {
            **rollout_metrics(rollout),
            **reward_metrics(rollout.trajectories, rewards, batch.advantages),
            **update_metrics(updates),
            **memory_metrics(),
        }
        for measure in (*parts.measures, parts.placement.step_metrics):
            metrics |= measure()
        self._progress.recent_rewards.append(metrics["train/reward"])
        reason = self._finished(stop)
        if self._validation_due(step, reason):
            metrics |= self._validate(step)
        if self._checkpoint_due(step, reason):
            self._save(step, metrics)
        return rollout, batch, metrics, reason

    def _finished(self, stop: StopRequest) -> EndReason | None:
        grpo, rewards = self._config.grpo, self._progress.recent_rewards
        if stop.requested is not None:
            return "signal"
        if self.step >= grpo.max_num_steps:
            return "steps"
        full = len(rewards) == grpo.stop_window
        if grpo.stop_at_reward is not None and full and sum(rewards) / len(rewards) >= grpo.stop_at_reward:
            return "reward"
        return "epochs" if self._parts.source.exhausted else None

    def _validation_due(self, step: int, reason: EndReason | None) -> bool:
        if self._parts.evaluator is None or reason == "signal":
            return False
        grpo = self._config.grpo
        return (grpo.val_period > 0 and step % grpo.val_period == 0) or (grpo.val_at_end and reason is not None)

    def _validate(self, step: int) -> dict[str, float]:
        assert self._parts.evaluator is not None
        self._parts.refit.ensure_current(self._parts.timer)
        with self._parts.timer.phase("validation"):
            evaluation = self._parts.evaluator.evaluate()
        self._progress.accuracy = evaluation.metrics["validation/accuracy"]
        self._validated_step = step
        self._parts.run.write_event("validation", step=step, **evaluation.metrics)
        self._write_samples(step, evaluation)
        return evaluation.metrics

    def _write_samples(self, step: int, evaluation: Evaluation) -> None:
        for trajectory in evaluation.trajectories[: self._config.logger.num_val_samples_to_print]:
            self._parts.run.write_sample(
                step,
                prompt=trajectory.prompt.text,
                completion=trajectory.text,
                answer=trajectory.prompt.answer,
                reward=trajectory.raw_reward,
            )

    def _checkpoint_due(self, step: int, reason: EndReason | None) -> bool:
        settings = self._config.checkpointing
        return self._parts.checkpoints is not None and (
            step % settings.save_period == 0 or reason == "signal" or (reason is not None and settings.save_at_end)
        )

    def _save(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._parts.checkpoints is not None
        with self._parts.timer.phase("checkpoint"):
            tensors, values = self._parts.policy.state()
            source_tensors, source_values = self._parts.source.state()
            rng_tensors, rng_values = capture_rng()
            saved = self._parts.checkpoints.save(
                step,
                {**_above("policy/", tensors), **_above("source/", source_tensors), **rng_tensors},
                {
                    "policy": values,
                    "source": source_values,
                    "trainer": self._progress.values(),
                    "rng": rng_values,
                },
                metrics,
            )
        self._saved_step = step
        self._parts.run.write_event(
            "checkpoint", step=step, path=str(saved.path), bytes=saved.bytes, seconds=saved.seconds,
            problems=list(saved.problems),
        )  # fmt: skip

    def _publish(self) -> None:
        """Write the last step's metrics. Called inside the next step, so that its seconds are in a step's `other`."""
        if self._unpublished is None:
            return
        metrics, self._unpublished = self._unpublished, None
        self._parts.run.write_metrics(self.step, metrics)
        if self._unpublished_ranks is not None:
            self._parts.run.write_ranks(self.step, self._unpublished_ranks.hosts, self._unpublished_ranks.phases)
            self._unpublished_ranks = None
        for observer in self._parts.observers:
            observer(self.step, metrics)


def _above(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": each for name, each in tensors.items()}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}
