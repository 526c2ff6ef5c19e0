"""What is done to rewards between the verifier and the advantages, and which groups are worth training on."""

import torch
from torch import Tensor

from grpo.algorithm.groups import RewardGroups


def overlong_penalty(lengths: Tensor, *, max_length: int, buffer_length: int, penalty: float = 1.0) -> Tensor:
    """DAPO's soft penalty (arXiv 2503.14476), to add to the rewards: [B] float32, between -penalty and 0.

    0 up to max_length - buffer_length tokens, then falling linearly to -penalty at `max_length` and beyond. `lengths`
    [B] counts completion tokens. Raises ValueError for a buffer that is not within (0, max_length].
    """
    if not 0 < buffer_length <= max_length:
        raise ValueError(f"buffer_length {buffer_length} must be between 1 and max_length {max_length}")
    excess = lengths.double() - (max_length - buffer_length)
    return (-penalty * (excess / buffer_length).clamp(0.0, 1.0)).float()


def scale_rewards(
    rewards: Tensor, *, source_min: float, source_max: float, target_min: float, target_max: float
) -> Tensor:
    """Map [source_min, source_max] linearly to [target_min, target_max], clamped; NaN stays NaN. Same shape and dtype.

    Raises ValueError for an empty source range.
    """
    if not source_min < source_max:
        raise ValueError(f"source_min {source_min} must be below source_max {source_max}")
    share = ((rewards.double() - source_min) / (source_max - source_min)).clamp(0.0, 1.0)
    return (target_min + share * (target_max - target_min)).to(rewards.dtype)


def informative_samples(raw_rewards: Tensor, group_ids: Tensor) -> Tensor:
    """DAPO's dynamic sampling: [B] bool, true for every sample of a group whose raw rewards differ.

    `raw_rewards` [B] are the verifier's, before scaling and shaping: a length penalty alone makes no group worth
    keeping. A NaN reward is left out of the comparison and its sample kept or dropped with its group.
    """
    kept = RewardGroups.of(raw_rewards, group_ids).informative()
    _, index = torch.unique(group_ids, return_inverse=True)
    return kept[index]
