"""From trajectories to a training batch: masks, log-probs, rewards, advantages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo.algorithm.advantage import advantages
from grpo.algorithm.kl import sequence_kl
from grpo.algorithm.layout import TokenLayout
from grpo.batching.batch import Batch
from grpo.config.schema import Config
from grpo.rollout.trajectory import Trajectory, to_batch
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.protocol import Policy


def training_batch(
    trajectories: Sequence[Trajectory], policy: Policy, config: Config, timer: PhaseTimer
) -> tuple[Batch, Tensor]:
    """The batch of a step, ready for `Policy.train`, and the rewards [B] float64 that its advantages are made of.

    A trajectory without a reward, or truncated under `grpo.overlong_filtering`, is rejected: it is not trained and does
    not shift the baseline of its group (its reward is NaN).
    """
    grpo, loss = config.grpo, config.loss_fn
    with timer.phase("advantages"):
        batch = to_batch(trajectories, overlong_filtering=grpo.overlong_filtering)
        rewards = _rewards(trajectories, overlong_filtering=grpo.overlong_filtering)
        group_ids = torch.tensor([trajectory.group_id for trajectory in trajectories])
    with timer.phase("logprobs"):
        batch = _with_logprobs(batch, policy, config, timer)
    with timer.phase("advantages"):
        if loss.reference_policy_kl_penalty and loss.reference_policy_kl_in == "reward":
            rewards = rewards - loss.reference_policy_kl_penalty * _sequence_kl(batch, config)
        values = advantages(
            rewards, group_ids, estimator=grpo.advantage_estimator, normalize=grpo.normalize_rewards,
            leave_one_out=grpo.use_leave_one_out_baseline, epsilon=grpo.advantage_epsilon,
        )  # fmt: skip
        if loss.force_on_policy_ratio:
            batch = batch.with_values(old_logprobs=None)
        return batch.with_values(advantages=values), rewards


def _rewards(trajectories: Sequence[Trajectory], *, overlong_filtering: bool) -> Tensor:
    values = [
        float("nan") if each.reward is None or (overlong_filtering and each.truncated) else each.reward
        for each in trajectories
    ]
    return torch.tensor(values, dtype=torch.float64)


def _with_logprobs(batch: Batch, policy: Policy, config: Config, timer: PhaseTimer) -> Batch:
    """Old log-probs unless the ratio is on-policy and nothing else asks for them; reference ones with a KL term."""
    loss = config.loss_fn
    kl_in_reward = loss.reference_policy_kl_penalty != 0 and loss.reference_policy_kl_in == "reward"
    if not loss.force_on_policy_ratio or kl_in_reward:
        with timer.part("policy"):
            batch = batch.with_values(old_logprobs=policy.logprobs(batch))
    if loss.reference_policy_kl_penalty != 0:
        with timer.part("reference"):
            batch = batch.with_values(reference_logprobs=policy.reference_logprobs(batch))
    return batch


def _sequence_kl(batch: Batch, config: Config) -> Tensor:
    assert batch.old_logprobs is not None
    assert batch.reference_logprobs is not None
    loss = config.loss_fn
    layout = TokenLayout(batch.mask, batch.sequence_ids, len(batch))
    return sequence_kl(
        batch.old_logprobs, batch.reference_logprobs, layout, kind=loss.reference_policy_kl_type,
        input_clamp=loss.kl_input_clamp_value, output_clamp=loss.kl_output_clamp_value,
    )  # fmt: skip
