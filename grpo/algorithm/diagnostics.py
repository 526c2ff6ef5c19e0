"""Per-token diagnostics of an update and their sums. Names are NeMo-RL's, whose users know them.

Everything is float64 without gradient. A difference l_old - l_gen that is not finite counts as 0 here: it has a counter
of its own, and one such token must not hide what the others say.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from grpo.algorithm.groups import RewardGroups
from grpo.algorithm.layout import TokenLayout


def logprob_differences(old_logprobs: Tensor, generation_logprobs: Tensor, mask: Tensor) -> Tensor:
    """l_old - l_gen of each token: [T] float64, 0 where the mask is false or it is not finite."""
    difference = old_logprobs.detach().double() - generation_logprobs.detach().double()
    return torch.where(mask & difference.isfinite(), difference, 0.0)


def mult_prob_error(differences: Tensor) -> Tensor:
    """exp(|l_gen - l_old|) of each token [T]; its mean is token_mult_prob_error."""
    return differences.abs().exp()


def gen_kl_error(differences: Tensor) -> Tensor:
    """k3 of the engine's against the trainer's distribution, of each token [T], in x = exp(l_old - l_gen)."""
    return differences.expm1() - differences


def approx_entropy(logprobs: Tensor, generation_logprobs: Tensor, mask: Tensor) -> Tensor:
    """-exp(l - l_gen) l of each token [T] float64: the entropy, estimated from sampled tokens (importance-weighted)."""
    current = torch.where(mask, logprobs.detach().double(), 0.0)
    return -current * logprob_differences(current, generation_logprobs, mask).exp()


def sequence_means(values: Tensor, layout: TokenLayout) -> Tensor:
    """Mean of `values` [T] float64 over each sequence's trained tokens: [b], NaN for a sequence that has none."""
    return layout.sum(torch.where(layout.mask, values, 0.0)) / layout.sequence_tokens


def token_sums(rows: Mapping[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
    """Sum each named row [T] (numbers or bool) over trained tokens: scalars float64, in one pass over all rows."""
    stacked = torch.stack([row.detach().double() for row in rows.values()])
    return dict(zip(rows, torch.where(mask, stacked, 0.0).sum(dim=1).unbind(), strict=True))


def zero_std_fraction(rewards: Tensor, group_ids: Tensor) -> float:
    """Share of groups, of those with two valid (finite) rewards or more, whose rewards are all equal; 0 with no group.

    Such a group teaches nothing under a group baseline. `rewards` [B] float, `group_ids` [B] int64.
    """
    groups = RewardGroups.of(rewards, group_ids)
    judged = groups.counts >= 2
    total = int(judged.sum())
    return int((judged & ~groups.informative()).sum()) / total if total else 0.0
