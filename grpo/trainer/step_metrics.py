"""What a step says of itself: the one place where its metrics get their names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from grpo.algorithm.diagnostics import zero_std_fraction
from grpo.algorithm.metrics import METRICS
from grpo.rollout.source import Rollout
from grpo.rollout.trajectory import Trajectory
from grpo.workers.protocol import UpdateResult

_ADDED = ("trained_tokens", "trained_sequences", "nonfinite_importance_weights")


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """Lengths and losses of the trajectories that are trained on, and what the source counted."""
    lengths = np.array([len(each.completion.token_ids) for each in rollout.trajectories])
    count = len(rollout.trajectories)
    return {
        "rollout/samples": float(count),
        "rollout/generated_tokens_per_sample": float(lengths.mean()),
        "rollout/completion_length_p95": float(np.percentile(lengths, 95)),
        "rollout/completion_length_max": float(lengths.max()),
        "rollout/prompt_tokens_per_sample": sum(len(each.prompt.token_ids) for each in rollout.trajectories) / count,
        "rollout/truncated_fraction": sum(each.truncated for each in rollout.trajectories) / count,
        "rollout/reward_failures": float(sum(each.raw_reward is None for each in rollout.trajectories)),
        **rollout.metrics,
    }


def reward_metrics(trajectories: Sequence[Trajectory], rewards: Tensor, advantages: Tensor) -> dict[str, float]:
    """`rewards` [B] are those that the advantages were made of, NaN where a trajectory was rejected."""
    raw = [each.raw_reward for each in trajectories if each.raw_reward is not None]
    group_ids = torch.tensor([each.group_id for each in trajectories])
    return {
        "train/reward": rewards.nanmean().item(),
        "train/raw_reward": sum(raw) / len(raw) if raw else math.nan,
        "train/zero_std_fraction": zero_std_fraction(rewards, group_ids),
        "train/advantage_abs_mean": advantages.abs().mean().item(),
    }


def update_metrics(updates: Sequence[UpdateResult]) -> dict[str, float]:
    """The updates of a step as one: counts add up, extremes stay extremes, means are weighted by their counts.

    A figure without a denominator (loss, norms, learning rate) is averaged over the updates.
    """
    names = list(dict.fromkeys(name for update in updates for name in update.metrics))
    return {f"train/{name}": _combined(name, [update.metrics for update in updates]) for name in names}


def _combined(name: str, updates: Sequence[Mapping[str, float]]) -> float:
    having = [metrics for metrics in updates if name in metrics]
    values = [metrics[name] for metrics in having]
    if len(values) == 1:
        return values[0]
    if name in _ADDED:
        return sum(values)
    if name.endswith(("_max", "_p99")):
        return max(values)
    if name.endswith("_min"):
        return min(values)
    denominator = METRICS[name].denominator if name in METRICS else "none"
    weights = [1.0 if denominator == "none" else metrics[f"trained_{denominator}"] for metrics in having]
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else 0.0
