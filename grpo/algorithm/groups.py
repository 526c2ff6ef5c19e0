"""Rewards by group: which rewards count, and which of them differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDING = 4  # rewards this many units in the last place apart are equal: 0.1 + 0.2 is 0.3


class Extremes(NamedTuple):
    smallest: Tensor
    largest: Tensor


@dataclass(frozen=True)
class RewardGroups:
    """The N valid rewards of a batch of B, sorted by group and by reward within it."""

    positions: Tensor  # [N] int64, in the batch
    rewards: Tensor  # [N] float64
    index: Tensor  # [N] int64, the group, 0 .. M - 1, of each
    counts: Tensor  # [M] int64, valid rewards of each group; 0 for a group without any
    tolerance: float  # relative, of comparisons

    @classmethod
    def of(cls, rewards: Tensor, group_ids: Tensor) -> RewardGroups:
        """Group `rewards` [B] by `group_ids` [B] int64, any ids in any order. NaN and infinity are no rewards.

        Raises ValueError where the shapes are not the same [B].
        """
        if rewards.dim() != 1 or rewards.shape != group_ids.shape:
            raise ValueError(f"rewards {tuple(rewards.shape)} and group_ids {tuple(group_ids.shape)} must both be [B]")
        rewards = rewards.detach()
        if not rewards.is_floating_point():
            rewards = rewards.to(torch.float64)
        distinct, group = torch.unique(group_ids, return_inverse=True)
        positions = rewards.isfinite().nonzero().squeeze(1)
        positions = positions[rewards[positions].argsort(stable=True)]
        positions = positions[group[positions].argsort(stable=True)]
        index = group[positions]
        counts = torch.bincount(index, minlength=distinct.numel())
        tolerance = ROUNDING * torch.finfo(rewards.dtype).eps
        return cls(positions, rewards[positions].double(), index, counts, tolerance)

    def sums(self, values: Tensor) -> Tensor:
        """[N] float64 -> the sum over each group [M]."""
        return values.new_zeros(self.counts.numel()).index_add(0, self.index, values)

    def extremes(self) -> Extremes:
        """Smallest and largest reward of each group [M]; NaN for a group without any."""
        start = self.counts.cumsum(0) - self.counts
        padded = torch.cat([self.rewards, self.rewards.new_full((1,), torch.nan)])
        nothing = self.rewards.numel()
        empty = self.counts == 0
        return Extremes(
            padded[torch.where(empty, nothing, start)], padded[torch.where(empty, nothing, start + self.counts - 1)]
        )

    def extremes_of_others(self) -> Extremes:
        """Smallest and largest among the other rewards of each reward's group [N]; NaN where there is no other."""
        size = self.counts[self.index]
        start = (self.counts.cumsum(0) - self.counts)[self.index]
        rank = torch.arange(self.rewards.numel(), device=self.rewards.device) - start
        alone = size < 2
        first = torch.where(alone, start, start + (rank == 0).long())
        last = torch.where(alone, start, start + size - 1 - (rank == size - 1).long())
        return Extremes(
            torch.where(alone, torch.nan, self.rewards[first]), torch.where(alone, torch.nan, self.rewards[last])
        )

    def differ(self, extremes: Extremes) -> Tensor:
        """Whether the rewards between these extremes differ by more than their dtype's rounding; NaN: they do not."""
        magnitude = torch.maximum(extremes.smallest.abs(), extremes.largest.abs())
        return extremes.largest - extremes.smallest > self.tolerance * magnitude

    def informative(self) -> Tensor:
        """[M] bool: groups of at least two valid rewards that are not all equal."""
        return self.differ(self.extremes())
