"""Validation: the held-out prompts, sampled with their own settings and scored by the same verifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.data.prompt import Prompt
from grpo.rollout.scoring import GroupScorer
from grpo.rollout.seeds import sampling_seed
from grpo.rollout.trajectory import Trajectory
from grpo.workers.protocol import Generator, SamplingParams


@dataclass(frozen=True)
class Evaluation:
    """What one validation found."""

    metrics: dict[str, float]
    trajectories: list[Trajectory]


class Evaluator:
    """Samples one completion of each validation prompt. The seeds are the same every time, so that runs compare."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        generator: Generator,
        scorer: GroupScorer,
        sampling: SamplingParams,
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        self._prompts = prompts
        self._generator = generator
        self._scorer = scorer
        self._sampling = sampling
        self._batch_size = batch_size
        self._seed = seed

    def evaluate(self) -> Evaluation:
        """Accuracy is the share of raw rewards of at least 1, reward their mean; no verdict counts as 0."""
        trajectories: list[Trajectory] = []
        for start in range(0, len(self._prompts), self._batch_size):
            prompts = self._prompts[start : start + self._batch_size]
            numbers = range(start, start + len(prompts))
            seeds = [sampling_seed(self._seed, "validation", number) for number in numbers]
            completions = self._generator.generate([prompt.token_ids for prompt in prompts], 1, self._sampling, seeds)
            trajectories += self._scorer.score(prompts, completions, numbers)
        rewards = [trajectory.raw_reward or 0.0 for trajectory in trajectories]
        lengths = [len(trajectory.completion.token_ids) for trajectory in trajectories]
        count = len(trajectories)
        metrics = {
            "validation/accuracy": sum(reward >= 1 for reward in rewards) / count,
            "validation/reward": sum(rewards) / count,
            "validation/mean_length": sum(lengths) / count,
            "validation/truncated_fraction": sum(trajectory.truncated for trajectory in trajectories) / count,
        }
        return Evaluation(metrics, trajectories)
