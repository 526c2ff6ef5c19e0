"""Waiting groups as a checkpoint holds them: tokens and log-probs as tensors, the rest as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo.data.prompt import Prompt
from grpo.rollout.replay.buffer import Group
from grpo.rollout.trajectory import Trajectory
from grpo.workers.protocol import Completion

TOKENS, LOGPROBS = "replay/token_ids", "replay/logprobs"  # [T] int64, float64, of all completions end to end


def pack(groups: Sequence[Group]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Tensors by name, none without groups, and one mapping a group. `unpack` gives back the same groups."""
    if not groups:
        return {}, []
    completions = [each.completion for group in groups for each in group.trajectories]
    tensors = {
        TOKENS: torch.tensor([token for each in completions for token in each.token_ids], dtype=torch.int64),
        LOGPROBS: torch.tensor([value for each in completions for value in each.logprobs], dtype=torch.float64),
    }
    values = [
        {"position": group.position, "trajectories": [_values(each) for each in group.trajectories]} for group in groups
    ]
    return tensors, values


def unpack(
    tensors: Mapping[str, Tensor], values: Sequence[Mapping[str, Any]], prompt_at: Callable[[int], Prompt]
) -> list[Group]:
    """The groups that `pack` was given. `prompt_at` gives the prompt of a position."""
    if not values:
        return []
    tokens, logprobs = tensors[TOKENS].tolist(), tensors[LOGPROBS].tolist()
    groups, start = [], 0
    for group in values:
        position = int(group["position"])
        prompt, trajectories = prompt_at(position), []
        for each in group["trajectories"]:
            end = start + int(each["length"])
            completion = Completion(
                tokens[start:end], logprobs[start:end], each["finish_reason"], int(each["weight_version"]),
                tuple((int(token), int(version)) for token, version in each["newer_from"]),
            )  # fmt: skip
            trajectories.append(
                Trajectory(position, prompt, completion, each["text"], each["raw_reward"], each["reward"])
            )
            start = end
        groups.append(Group(position, tuple(trajectories)))
    assert start == len(tokens) == len(logprobs), (start, len(tokens), len(logprobs))
    return groups


def _values(trajectory: Trajectory) -> dict[str, Any]:
    completion = trajectory.completion
    return {
        "length": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "weight_version": completion.weight_version,
        "newer_from": [list(each) for each in completion.newer_from],
        "text": trajectory.text,
        "raw_reward": trajectory.raw_reward,
        "reward": trajectory.reward,
    }
