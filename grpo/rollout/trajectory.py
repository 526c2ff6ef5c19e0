"""What a rollout source gives the trainer: completions with everything that training needs to know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo.batching.batch import Batch
from grpo.data.prompt import Prompt
from grpo.workers.protocol import Completion


@dataclass(frozen=True)
class Trajectory:
    """One completion of one prompt, scored. A reward of None is a sample that could not be scored: it is dropped."""

    group_id: int  # completions of one drawing of one prompt
    prompt: Prompt
    completion: Completion
    text: str
    raw_reward: float | None  # the verifier's word
    reward: float | None  # after scaling and shaping; what advantages are made of

    @property
    def truncated(self) -> bool:
        return self.completion.finish_reason == "length"


def to_batch(trajectories: Sequence[Trajectory], *, overlong_filtering: bool) -> Batch:
    """Lay trajectories end to end.

    No token of one without a reward is trained, nor, under overlong filtering, of one that was truncated.
    """
    tokens: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    lengths: list[int] = []
    for trajectory in trajectories:
        prompt, completion = trajectory.prompt.token_ids, trajectory.completion
        trained = trajectory.reward is not None and not (overlong_filtering and trajectory.truncated)
        tokens += [*prompt, *completion.token_ids]
        mask += [False] * len(prompt) + [trained] * len(completion.token_ids)
        logprobs += [0.0] * len(prompt) + completion.logprobs
        lengths.append(len(prompt) + len(completion.token_ids))
    return Batch(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        lengths=torch.tensor(lengths, dtype=torch.int64),
        mask=torch.tensor(mask, dtype=torch.bool),
        generation_logprobs=torch.tensor(logprobs, dtype=torch.float32),
    )
