"""From completions to scored trajectories: decode, verify, scale, shape."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import torch
from transformers import PreTrainedTokenizerBase

from grpo.algorithm.shaping import overlong_penalty, scale_rewards
from grpo.config.schema import RewardScaling, RewardShaping
from grpo.data.prompt import Prompt
from grpo.errors import RewardError
from grpo.rewards.request import RewardRequest, Score
from grpo.rewards.scoring import Rewards
from grpo.rollout.trajectory import Trajectory
from grpo.workers.protocol import Completion

# Samples in a row without a verdict after which the verifier, not the samples, is to blame.
_MAX_FAILURES_IN_A_ROW = 64


class GroupScorer(Protocol):
    """Scores groups of completions."""

    def score(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]], group_ids: Sequence[int]
    ) -> list[Trajectory]:
        """See `Scorer.score`."""
        ...


class Scorer:
    """Scores groups of completions with the verifiers of the run."""

    def __init__(
        self,
        rewards: Rewards,
        tokenizer: PreTrainedTokenizerBase,
        *,
        scaling: RewardScaling,
        shaping: RewardShaping,
    ) -> None:
        self._rewards = rewards
        self._tokenizer = tokenizer
        self._scaling = scaling
        self._shaping = shaping
        self._any_scored = False
        self._failures_in_a_row = 0

    def score(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]], group_ids: Sequence[int]
    ) -> list[Trajectory]:
        """Trajectories of all groups, in order. `raw_reward` and `reward` are None where no verdict could be had.

        Raises:
            RewardError: not one sample could be scored, and either none was before or 64 in a row have failed: one bad
                sample that happens to be alone costs itself, not the run.
        """
        flat = [
            (group, prompt, completion)
            for group, prompt, group_completions in zip(group_ids, prompts, completions, strict=True)
            for completion in group_completions
        ]
        numbers = [number for group_completions in completions for number in range(len(group_completions))]
        texts = self._tokenizer.batch_decode([each.token_ids for _, _, each in flat], skip_special_tokens=True)
        requests = [
            (
                prompt.env_name,
                RewardRequest(f"{prompt.prompt_id}#{group}/{number}", prompt.text, text, prompt.answer, prompt.record),
            )
            for (group, prompt, _), number, text in zip(flat, numbers, texts, strict=True)
        ]
        scores = self._rewards.score(requests)
        raw = [score.value for score in scores]
        self._check_verdicts(scores)
        shaped = self._shape(raw, [len(completion.token_ids) for _, _, completion in flat])
        return [
            Trajectory(group, prompt, completion, text, raw_reward, reward)
            for (group, prompt, completion), text, raw_reward, reward in zip(flat, texts, raw, shaped, strict=True)
        ]

    def _check_verdicts(self, scores: Sequence[Score]) -> None:
        if any(score.value is not None for score in scores):
            self._any_scored, self._failures_in_a_row = True, 0
            return
        self._failures_in_a_row += len(scores)
        if not self._any_scored or self._failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
            raise RewardError(f"none of the {len(scores)} samples could be scored; the first: {scores[0].failure}")

    def _shape(self, raw: Sequence[float | None], lengths: Sequence[int]) -> list[float | None]:
        if not (self._scaling.enabled or self._shaping.enabled):
            return list(raw)
        rewards = torch.tensor([float("nan") if value is None else value for value in raw], dtype=torch.float64)
        if self._scaling.enabled:
            rewards = scale_rewards(
                rewards, source_min=self._scaling.source_min, source_max=self._scaling.source_max,
                target_min=self._scaling.target_min, target_max=self._scaling.target_max,
            )  # fmt: skip
        if self._shaping.enabled:
            assert self._shaping.max_response_length is not None, "filled in when the configuration is resolved"
            rewards = rewards + overlong_penalty(
                torch.tensor(lengths), max_length=self._shaping.max_response_length,
                buffer_length=self._shaping.overlong_buffer_length, penalty=self._shaping.overlong_buffer_penalty,
            )  # fmt: skip
        return [None if value is None else reward for value, reward in zip(raw, rewards.tolist(), strict=True)]


class SharedScorer:
    """A `Scorer` for several threads, one at a time: validation may come while a thread collects rollouts."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._lock = threading.Lock()

    def score(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]], group_ids: Sequence[int]
    ) -> list[Trajectory]:
        """As `Scorer.score`."""
        with self._lock:
            return self._scorer.score(prompts, completions, group_ids)
