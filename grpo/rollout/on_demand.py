"""Synchronous rollouts: sample with the current weights, now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from grpo.algorithm.shaping import informative_samples
from grpo.config.schema import Grpo
from grpo.data.loader import PromptLoader
from grpo.errors import GrpoError
from grpo.rollout.scoring import GroupScorer
from grpo.rollout.seeds import sampling_seed
from grpo.rollout.source import Rollout, of_other_source
from grpo.rollout.trajectory import Trajectory
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.generation.replay import ended
from grpo.workers.protocol import Generator, SamplingParams


class DynamicSamplingError(GrpoError):
    """Dynamic sampling found too few groups whose rewards differ."""


class OnDemandSource:
    """Draws prompts, samples their groups, scores them; with dynamic sampling until enough groups are informative."""

    def __init__(
        self, loader: PromptLoader, generator: Generator, scorer: GroupScorer, sampling: SamplingParams, grpo: Grpo
    ) -> None:
        self._loader = loader
        self._generator = generator
        self._scorer = scorer
        self._sampling = sampling
        self._grpo = grpo
        self._groups_drawn = 0
        self._before: dict[str, Any] = self.state()[1]

    @property
    def exhausted(self) -> bool:
        return self._loader.remaining == 0

    def next_rollout(self, timer: PhaseTimer) -> Rollout | None:
        """One step's groups; fewer at the end of the prompts, None after it.

        Raises:
            DynamicSamplingError: `grpo.dynamic_sampling_max_gen_batches` batches gave too few informative groups.
        """
        wanted = self._grpo.num_prompts_per_step
        kept: list[list[Trajectory]] = []
        drawn: list[Trajectory] = []
        batches = 0
        while len(kept) < wanted:
            if self._grpo.use_dynamic_sampling and batches == self._grpo.dynamic_sampling_max_gen_batches:
                raise too_few_informative(self._grpo, found=len(kept))
            batch = self._draw(wanted, timer)
            if not batch:
                break
            batches += 1
            drawn += batch
            kept += self._informative(batch)
        if not kept:
            return None
        metrics = {"rollout/generation_batches": float(batches)}
        if self._grpo.use_dynamic_sampling:
            groups = len(drawn) // self._grpo.num_generations_per_prompt
            metrics["rollout/discarded_groups"] = float(groups - min(len(kept), wanted))
        return Rollout(
            trajectories=[trajectory for group in kept[:wanted] for trajectory in group],
            generated_samples=len(drawn),
            generated_tokens=sum(len(each.completion.token_ids) for each in drawn),
            prompt_tokens=sum(len(each.prompt.token_ids) for each in drawn),
            metrics=metrics,
        )

    def begin(self) -> None:
        self._before = self.state()[1]

    def go_back(self) -> None:
        self.load_state({}, self._before)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"loader": self._loader.state(), "groups_drawn": self._groups_drawn}

    def load_state(self, _tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Raises CheckpointError if it is of another source."""
        if "groups_drawn" not in values:
            raise of_other_source(saved_async=True)
        self._loader.load_state(values["loader"])
        self._groups_drawn = int(values["groups_drawn"])

    def close(self) -> None:
        """Nothing runs between the steps."""

    def _draw(self, count: int, timer: PhaseTimer) -> list[Trajectory]:
        with timer.phase("data"):
            prompts = self._loader.take(count)
            if not prompts:
                return []
            group_ids = range(self._groups_drawn, self._groups_drawn + len(prompts))
            seeds = [sampling_seed(self._grpo.seed, "train", group) for group in group_ids]
            self._groups_drawn += len(prompts)
        with timer.phase("generation"):
            completions = self._generator.generate(
                [prompt.token_ids for prompt in prompts], self._grpo.num_generations_per_prompt, self._sampling, seeds
            )
            completions = ended([prompt.token_ids for prompt in prompts], completions, self._sampling)
        with timer.phase("rewards"):
            return self._scorer.score(prompts, completions, group_ids)

    def _informative(self, batch: Sequence[Trajectory]) -> list[list[Trajectory]]:
        """The groups of a batch, without those that dynamic sampling rejects by their raw rewards."""
        groups = [list(group) for _, group in groupby(batch, key=lambda trajectory: trajectory.group_id)]
        if not self._grpo.use_dynamic_sampling:
            return groups
        raw = [float("nan") if each.raw_reward is None else each.raw_reward for each in batch]
        informative = informative_samples(
            torch.tensor(raw, dtype=torch.float64), torch.tensor([each.group_id for each in batch])
        )
        of_group = dict(zip((each.group_id for each in batch), informative.tolist(), strict=True))
        return [group for group in groups if of_group[group[0].group_id]]


def too_few_informative(grpo: Grpo, *, found: int) -> DynamicSamplingError:
    """What to say when as many prompts as may be drawn for a step gave too few groups."""
    batches = grpo.dynamic_sampling_max_gen_batches
    return DynamicSamplingError(
        f"dynamic sampling: after {batches} generation batches (grpo.dynamic_sampling_max_gen_batches={batches}) "
        f"only {found} of grpo.num_prompts_per_step={grpo.num_prompts_per_step} groups have rewards that "
        "differ. The prompts are too easy or too hard for this policy: choose others, raise "
        "grpo.num_generations_per_prompt or grpo.dynamic_sampling_max_gen_batches, or set "
        "grpo.use_dynamic_sampling=false"
    )
