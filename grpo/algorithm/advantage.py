"""Advantages from the rewards of a whole step."""

from typing import Literal

import torch
from torch import Tensor

from grpo.algorithm.groups import RewardGroups

Estimator = Literal["grpo", "dr_grpo", "rloo", "reinforce_pp"]
REINFORCE_PP_EPSILON = 1e-8


def advantages(
    rewards: Tensor,
    group_ids: Tensor,
    *,
    estimator: Estimator = "grpo",
    normalize: bool = True,
    leave_one_out: bool = True,
    epsilon: float = 1e-6,
    bessel: bool = True,
) -> Tensor:
    """Advantages [B] float32 of `rewards` [B] (NaN: no reward) in the groups of `group_ids` [B] int64.

    - grpo (arXiv 2402.03300): (r - mean) / (std + epsilon), of the group or, with `leave_one_out`, of its others, which
      divides only where the others differ. `normalize` false: r - mean. `bessel` false: population deviation.
    - dr_grpo (2503.20783): r - mean. rloo (2402.14740): G / (G - 1) (r - mean), G the group's valid samples.
    - reinforce_pp (2501.03262): (r - mean) / (std + 1e-8) over all valid samples; groups matter only in what follows.

    A sample without a finite reward is left out of its group and gets 0; a sample that shall not count at all (one
    rejected) must therefore come here as NaN, not be masked afterwards, or it still shifts its group's baseline. A
    group with fewer than two valid samples gets 0, and so does a group of equal rewards (reinforce_pp: a batch). Equal
    is decided by comparing the rewards up to the rounding of their dtype, before anything is subtracted. Computed in
    float64. Raises ValueError for another estimator or shapes that differ.
    """
    groups = RewardGroups.of(rewards, group_ids)
    if estimator == "reinforce_pp":
        whole = RewardGroups.of(rewards, torch.zeros_like(group_ids))
        values = torch.zeros_like(rewards, dtype=torch.float64)
        values[whole.positions] = _group_normalized(whole, epsilon=REINFORCE_PP_EPSILON, bessel=True)
        values = values[groups.positions] * (groups.counts[groups.index] >= 2)
    elif estimator == "grpo" and leave_one_out:
        values = _leave_one_out(groups, normalize=normalize, epsilon=epsilon, bessel=bessel)
    elif estimator == "grpo" and normalize:
        values = _group_normalized(groups, epsilon=epsilon, bessel=bessel)
    elif estimator in ("grpo", "dr_grpo"):
        values = _centred(groups)
    elif estimator == "rloo":
        size = groups.counts[groups.index].double()
        values = _centred(groups) * size / (size - 1).clamp(min=1)
    else:
        raise ValueError(f"estimator {estimator!r}: grpo, dr_grpo, rloo or reinforce_pp")
    result = torch.zeros(rewards.shape, dtype=torch.float32, device=rewards.device)
    result[groups.positions] = values.float()
    return result


def _centred(groups: RewardGroups) -> Tensor:
    """Give r - mean [N], exactly 0 in groups of equal rewards."""
    means = groups.sums(groups.rewards) / groups.counts.clamp(min=1)
    return torch.where(groups.informative()[groups.index], groups.rewards - means[groups.index], 0.0)


def _group_normalized(groups: RewardGroups, *, epsilon: float, bessel: bool) -> Tensor:
    centred = _centred(groups)
    variances = groups.sums(centred.square()) / (groups.counts - int(bessel)).clamp(min=1)
    # Equal rewards are 0 already: adding 1 keeps 0 / (0 + 0) out when epsilon is 0.
    deviations = torch.where(groups.informative(), variances.sqrt() + epsilon, 1.0)
    return centred / deviations[groups.index]


def _leave_one_out(groups: RewardGroups, *, normalize: bool, epsilon: float, bessel: bool) -> Tensor:
    size = groups.counts[groups.index].double()
    centred = _centred(groups)
    from_others = centred * size / (size - 1).clamp(min=1)  # r minus the mean of the others
    if not normalize:
        return from_others
    # The others' squared deviations: all, less what this sample adds to them. Their comparison decides, not this
    # difference, which rounding may leave a little off zero.
    squares = groups.sums(centred.square())[groups.index] - centred * from_others
    variances = squares.clamp(min=0.0) / (size - 1 - int(bessel)).clamp(min=1)
    divides = groups.differ(groups.extremes_of_others())
    return torch.where(divides, from_others / (variances.sqrt() + epsilon), from_others)
