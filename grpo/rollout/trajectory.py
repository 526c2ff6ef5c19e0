"""What a rollout source gives the trainer: completions with everything that training needs to know of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
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
    spans = np.array(
        [(len(each.prompt.token_ids), len(each.completion.token_ids)) for each in trajectories], dtype=np.int64
    ).reshape(-1, 2)  # [B, prompt and completion]
    trained = [each.reward is not None and not (overlong_filtering and each.truncated) for each in trajectories]
    sampled = np.repeat(np.tile([False, True], len(spans)), spans.ravel())  # [T]
    lists = chain.from_iterable((each.prompt.token_ids, each.completion.token_ids) for each in trajectories)
    logprobs = np.zeros(len(sampled), dtype=np.float32)
    logprobs[sampled] = _end_to_end((each.completion.logprobs for each in trajectories), np.float32)
    return Batch(
        tokens=torch.from_numpy(_end_to_end(lists, np.int64)),
        lengths=torch.from_numpy(spans.sum(axis=1)),
        mask=torch.from_numpy(sampled & np.repeat(np.array(trained, dtype=bool), spans.sum(axis=1))),
        generation_logprobs=torch.from_numpy(logprobs),
    )


def _end_to_end(lists: Iterable[Sequence[float]], dtype: type[np.generic]) -> np.ndarray:
    # A tenth of the time of `torch.tensor` over the joined lists: 80,000 tokens in 4 ms.
    return np.fromiter(chain.from_iterable(lists), dtype)
