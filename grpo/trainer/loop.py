"""The one training loop. Sync and async, colocated and separate differ in the parts plugged in, not here."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from grpo.batching.batch import Batch
from grpo.checkpoint.reading import OpenCheckpoint
from grpo.checkpoint.rng import remember_rng, restore_rng
from grpo.checkpoint.signals import Abandoned, StopRequest
from grpo.config.schema import Config
from grpo.rollout.source import Rollout
from grpo.telemetry.memory import memory_metrics
from grpo.telemetry.timers import Charge, Phase
from grpo.trainer.advantages import training_batch
from grpo.trainer.evaluation import Evaluation
from grpo.trainer.parts import Parts
from grpo.trainer.progress import EndReason, Outcome, Progress
from grpo.trainer.publisher import Publisher
from grpo.trainer.saves import Saves, source_tensors
from grpo.trainer.step_metrics import reward_metrics, rollout_metrics, update_metrics
from grpo.trainer.stopping import Stopping
from grpo.workers.groups.watchdog import watched
from grpo.workers.protocol import UpdateResult


class Trainer:
    """Runs steps until a limit, a reward, the end of the prompts, a signal or the end of its time."""

    def __init__(self, parts: Parts, config: Config) -> None:
        self._parts = parts
        parts.timer.entering = self._enter  # no phase begins before everything is where it needs it
        self._config = config
        self._progress = Progress(recent_rewards=deque(maxlen=config.grpo.stop_window))
        self._publisher = Publisher(parts)
        self._last_row: dict[str, float] = {}
        self._validated_step: int | None = None
        self._stopping = Stopping(StopRequest(), config.checkpointing)
        self._saves = Saves(parts, self._took)

    @property
    def step(self) -> int:
        """Steps done."""
        return self._progress.step

    def run(self, stop: StopRequest, *, longest_save_s: float = 0.0) -> Outcome:
        """Train to the end, or until a stop is requested or the time limit is near; then what is done is saved.

        A save in the background has ended by then; one that fails ends the run before the next phase or update begins,
        and a rollout or validation is given up for it. `longest_save_s`: what a save of this run took at most before it
        was interrupted.

        Raises:
            CheckpointError: a save failed, also one in the background during an earlier step, or the time limit leaves
                no time for a single step.
        """
        self._stopping = Stopping(stop, self._config.checkpointing, longest_save_s=longest_save_s)
        self._saves.on_failure(stop.give_up)
        try:
            outcome = self._run()
        except Exception as error:
            self._saves.wait_after(error)
            raise
        self._saves.wait()
        return outcome

    def _run(self) -> Outcome:
        self._validate_before_training()
        reason = "stopped" if self._progress.validation_pending else self._finished()
        while reason is None:
            reason = self._timed_step() or self._finished()
        stopped_by = self._stopping.due() if reason == "stopped" else None
        if reason == "stopped" and self._saves.enabled and self.step not in (0, self._saves.step):
            with self._parts.timer.step():
                self._save(self.step, self._last_row)
        if not self._progress.validation_pending:
            self._publisher.publish(self.step)
        return Outcome(reason, self.step, self._progress.accuracy, stopped_by, saved=self._saves.step == self.step)

    def load(self, checkpoint: OpenCheckpoint) -> None:
        """Continue from a checkpoint. Its metrics are written if the run was killed before it could."""
        with_optimizer = self._config.checkpointing.load_optimizer
        values = checkpoint.values
        untaken = self._parts.ranks.load(checkpoint, optimizer=with_optimizer)
        self._parts.source.load_state(source_tensors(checkpoint.tensors), values["source"])
        self._progress = Progress.of(values["trainer"], self._config.grpo.stop_window)
        untaken += restore_rng(checkpoint.tensors, values["rng"])
        self._saves.step = self.step
        self._last_row = dict(checkpoint.metrics)
        if self._parts.run.last_step < self.step:
            self._publisher.hold(dict(checkpoint.metrics))
        backend = values["policy"].get("backend")
        self._parts.run.write_event(
            "checkpoint_loaded", step=self.step, path=str(checkpoint.path), backend=backend, optimizer=with_optimizer,
            random_states_not_taken=untaken,
        )  # fmt: skip
        if not with_optimizer:
            self._parts.say("checkpointing.load_optimizer=false: the optimizer's state is lost and begins anew")
        if untaken:
            self._parts.say(f"random states that this run cannot take from the checkpoint: {', '.join(untaken)}")

    def _validate_before_training(self) -> None:
        """The validation of the untrained policy, or the one that a stop kept the last step from."""
        pending = self._progress.validation_pending
        wanted = pending or (self.step == 0 and self._config.grpo.val_at_start)
        if self._parts.evaluator is None or not wanted:
            self._progress.validation_pending = False
            return
        try:
            limit = watched(self._config.cluster.step_timeout_s)
            with limit, self._parts.timer.step() as times, self._stopping.validation():
                metrics = self._validate(self.step)
        except Abandoned:
            self._saves.check()
            return
        if not pending:
            self._publisher.hold({**times, **metrics})
            return
        self._progress.validation_pending = False
        self._last_row |= metrics
        self._publisher.hold(dict(self._last_row))
        if self._checkpoint_due(self.step, self._finished()):
            with self._parts.timer.step():
                self._save(self.step, self._last_row)  # again, since the best are known by these metrics

    def _timed_step(self) -> EndReason | None:
        """One step and its metrics; one that is given up leaves the run as it was before it."""
        self._parts.source.begin()
        put_back = remember_rng() if self._saves.enabled else None
        try:
            with watched(self._config.cluster.step_timeout_s), self._parts.timer.step() as times:
                self._publisher.publish(self.step)
                done = self._step(self.step + 1)
                if done is None:
                    self._close_without_step()
        except Abandoned:
            self._saves.check()
            self._parts.source.go_back()
            if put_back is not None:
                put_back()
            return "stopped"
        if done is None:
            return "epochs"
        rollout, batch, metrics, reason = done
        self._last_row = self._row(times, metrics, rollout, batch)
        self._publisher.hold_step(self._last_row, [len(each.completion.token_ids) for each in rollout.trajectories])
        self._stopping.step_done(times["timing/total"])
        return reason

    def _close_without_step(self) -> None:
        """What the last step would have done, had it been known to be the last.

        Dynamic sampling may find no group to keep in the prompts that are left. The events tell of this validation.
        """
        metrics: dict[str, float] = {}
        if self._config.grpo.val_at_end and self._parts.evaluator is not None and self._validated_step != self.step:
            metrics = self._validate(self.step)
        wanted = self._saves.enabled and self._config.checkpointing.save_at_end
        if wanted and self.step > 0 and self._saves.step != self.step:
            self._save(self.step, {**self._last_row, **metrics})

    def _step(self, step: int) -> tuple[Rollout, Batch, dict[str, float], EndReason | None] | None:
        """A step's rollout, batch and metrics, and why it is the last one, if it is; None: no prompts are left.

        Raises:
            Abandoned: the rollout left no time for the rest of the step and a save.
        """
        parts, timer = self._parts, self._parts.timer
        parts.refit.ensure_current(timer)
        with self._stopping.rollout():
            rollout = parts.source.next_rollout(timer)
        if rollout is None:
            return None
        batch, rewards = training_batch(rollout.trajectories, parts.policy, self._config, timer)
        assert batch.advantages is not None
        size = self._config.policy.train_global_batch_size
        with timer.phase("policy_training"):
            updates = [
                self._update(batch.select(range(at, min(at + size, len(batch))))) for at in range(0, len(batch), size)
            ]
            self._saves.prepare()
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
        reason = self._finished()
        if self._validation_due(step, reason):
            try:
                with self._stopping.validation():
                    metrics |= self._validate(step)
            except Abandoned:
                self._saves.check()
                self._progress.validation_pending, reason = True, "stopped"
        if self._checkpoint_due(step, reason):
            self._save(step, self._row(timer.so_far(), metrics, rollout, batch))
        return rollout, batch, metrics, reason

    def _enter(self, phase: Phase) -> list[Charge]:
        with self._stopping.undivided():
            self._saves.check()
            charges = self._parts.placement.enter(phase)
            self._stopping.moved(sum(charge.seconds for charge in charges))
            return charges

    def _update(self, batch: Batch) -> UpdateResult:
        self._saves.check()
        return self._parts.policy.train(batch)

    def _finished(self) -> EndReason | None:
        """Why there is no further step. A run that is at its end is not stopped by a signal any more."""
        grpo, rewards = self._config.grpo, self._progress.recent_rewards
        if self.step >= grpo.max_num_steps:
            return "steps"
        full = len(rewards) == grpo.stop_window
        if grpo.stop_at_reward is not None and full and sum(rewards) / len(rewards) >= grpo.stop_at_reward:
            return "reward"
        if self._parts.source.exhausted:
            return "epochs"
        return None if self._stopping.due() is None else "stopped"

    def _validation_due(self, step: int, reason: EndReason | None) -> bool:
        if self._parts.evaluator is None:
            return False
        grpo, last = self._config.grpo, reason not in (None, "stopped")
        return (grpo.val_period > 0 and step % grpo.val_period == 0) or (grpo.val_at_end and last)

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
        return self._saves.enabled and (
            step % settings.save_period == 0 or reason == "stopped" or (reason is not None and settings.save_at_end)
        )

    def _took(self, seconds: float) -> None:
        self._stopping.saved(seconds)

    def _save(self, step: int, metrics: Mapping[str, float]) -> None:
        self._saves.save(step, metrics, self._progress.values())

    def _row(
        self, times: Mapping[str, float], metrics: Mapping[str, float], rollout: Rollout, batch: Batch
    ) -> dict[str, float]:
        """A line of metrics.jsonl."""
        return {**times, **metrics, **self._parts.throughput.metrics(rollout, batch, times)}
