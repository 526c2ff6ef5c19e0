"""Asynchronous rollouts: trained on when they are there, sampled while training runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from grpo.algorithm.shaping import informative_samples
from grpo.config.schema import Grpo
from grpo.data.loader import PromptLoader
from grpo.rollout.on_demand import too_few_informative
from grpo.rollout.replay.buffer import Group, ReplayBuffer
from grpo.rollout.replay.collector import Collector, Counts
from grpo.rollout.replay.saved import pack, unpack
from grpo.rollout.scoring import GroupScorer
from grpo.rollout.source import Rollout, of_other_source
from grpo.rollout.trajectory import Trajectory
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.protocol import SamplingParams, StreamingGenerator


class ReplaySource:
    """A `RolloutSource` whose groups come from a replay buffer that a thread fills.

    What the step waits for them is its phase generation, the exposed part; scoring is hidden and has no seconds of its
    own. `scorer` is used from the thread: give one that may be shared.
    """

    def __init__(
        self,
        loader: PromptLoader,
        generator: StreamingGenerator,
        scorer: GroupScorer,
        sampling: SamplingParams,
        grpo: Grpo,
        *,
        updates_per_step: int,
        deadline_s: float,
    ) -> None:
        """`deadline_s`: seconds without any group finishing after which a waiting step is an error."""
        self._loader = loader
        self._generator = generator
        self._grpo = grpo
        self._discarded = 0  # since the last step's groups were taken
        self._buffer = ReplayBuffer(
            groups_per_step=grpo.num_prompts_per_step,
            max_age_steps=grpo.async_grpo.max_trajectory_age_steps,
            updates_per_step=updates_per_step,
        )
        self._collector = Collector(
            self._buffer, loader, generator, scorer, sampling, num_completions=grpo.num_generations_per_prompt,
            seed=grpo.seed, deadline_s=deadline_s, give_up=self._uninformative,
        )  # fmt: skip

    @property
    def exhausted(self) -> bool:
        with self._collector.lock:
            return self._loader.remaining == 0 and self._buffer.empty

    @property
    def running(self) -> int:
        """Groups that the engine or the verifiers have."""
        with self._collector.lock:
            return len(self._buffer.running)

    def next_rollout(self, timer: PhaseTimer) -> Rollout | None:
        """One step's groups, waiting for them if need be; fewer at the end of the prompts, None after it.

        Raises:
            GenerationError: no group finished within the deadline.
            DynamicSamplingError: too many groups in a row had rewards that do not differ.
            Exception: what the engine or a verifier raised while training ran.
        """
        with timer.phase("generation"):
            started = time.perf_counter()
            version = self._generator.weight_version
            self._collector.start(version)
            groups = self._collector.take(version)
            exposed = time.perf_counter() - started
        if groups is None:
            return None
        with self._collector.lock:
            self._discarded = 0
        counts = self._collector.take_counts()
        return Rollout(
            trajectories=[trajectory for group in groups for trajectory in group.trajectories],
            generated_samples=counts.samples,
            generated_tokens=counts.generated_tokens,
            prompt_tokens=counts.prompt_tokens,
            metrics=self._metrics(groups, counts, exposed),
        )

    def begin(self) -> None:
        with self._collector.lock:
            self._buffer.forget_taken()

    def go_back(self) -> None:
        """Have the groups that were taken wait again."""
        with self._collector.lock:
            self._buffer.put_back()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The buffer with its versions, and which prompts the engine has: they are sampled again after a resume."""
        with self._collector.lock:
            buffer, ready = self._buffer.state()
            tensors, groups = pack(ready)
            return tensors, {
                "loader": self._loader.state(), "buffer": buffer, "groups": groups,
            }  # fmt: skip

    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Raises CheckpointError if it is of another source."""
        if "buffer" not in values:
            raise of_other_source(saved_async=False)
        self._loader.load_state(values["loader"])
        groups = unpack(tensors, values["groups"], self._loader.at)
        self._buffer.load_state(values["buffer"], groups)

    def close(self) -> None:
        """End the thread."""
        self._collector.close()

    def _metrics(self, groups: Sequence[Group], counts: Counts, exposed: float) -> dict[str, float]:
        ages = [self._buffer.age(group.oldest_version) for group in groups]
        mixed = [bool(each.completion.newer_from) for group in groups for each in group.trajectories]
        with self._collector.lock:
            waiting, running = self._buffer.ready, len(self._buffer.running)
        metrics = {
            "rollout/age_steps_mean": fmean(ages),
            "rollout/age_steps_max": float(max(ages)),
            "rollout/mixed_version_fraction": fmean(mixed),
            "rollout/buffer_groups": float(waiting),
            "rollout/running_groups": float(running),
            "rollout/engine_busy_s": counts.busy_s,
            "rollout/engine_starved_s": counts.starved_s,
            "rollout/overlap": max(0.0, 1.0 - exposed / counts.busy_s) if counts.busy_s else 0.0,
        }
        if self._grpo.use_dynamic_sampling:
            metrics["rollout/discarded_groups"] = float(counts.given_up)
        return metrics

    def _uninformative(self, group: Sequence[Trajectory]) -> bool:
        """Called in the thread, under the lock."""
        if not self._grpo.use_dynamic_sampling:
            return False
        raw = [float("nan") if each.raw_reward is None else each.raw_reward for each in group]
        ids = torch.zeros(len(raw), dtype=torch.int64)
        if bool(informative_samples(torch.tensor(raw, dtype=torch.float64), ids).any()):
            return False
        self._discarded += 1
        batches = self._grpo.dynamic_sampling_max_gen_batches
        if self._discarded >= batches * self._grpo.num_prompts_per_step:
            raise too_few_informative(self._grpo, found=self._buffer.ready)
        return True
