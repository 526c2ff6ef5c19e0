import math

import pytest
import torch

from grpo.config import load_config
from grpo.telemetry.timers import PhaseTimer
from grpo.trainer.advantages import training_batch
from tests.support.rollouts import trajectory

KL = ["loss_fn.reference_policy_kl_penalty=0.1", "loss_fn.force_on_policy_ratio=false"]


class TracingPolicy:
    """Log-probs that a test can tell apart, and a list of the passes that were asked for."""

    def __init__(self):
        self.passes = []

    def logprobs(self, batch):
        self.passes.append("policy")
        return torch.where(batch.mask, -1.0, 0.0)

    def reference_logprobs(self, batch):
        self.passes.append("reference")
        return torch.where(batch.mask, -2.0, 0.0)


def make(trajectories, *overrides):
    policy, timer = TracingPolicy(), PhaseTimer()
    config = load_config("tiny", list(overrides)).config
    with timer.step():
        batch, rewards = training_batch(trajectories, policy, config, timer)
    return batch, rewards, policy.passes


def rewarded(*rewards, **rest):
    return [trajectory(0, reward, **rest) for reward in rewards]


def test_advantages_follow_the_formula():
    batch, _, _ = make(rewarded(1.0, 0.0, 0.0, 0.0))
    assert batch.advantages.tolist() == pytest.approx([1.499997, *[-0.499999] * 3], abs=2e-6)


@pytest.mark.parametrize(
    ("overrides", "passes"),
    [
        ([], []),
        (["loss_fn.force_on_policy_ratio=false"], ["policy"]),
        (KL, ["policy", "reference"]),
        (["loss_fn.reference_policy_kl_penalty=0.1"], ["reference"]),
        (["loss_fn.reference_policy_kl_penalty=0.1", "loss_fn.reference_policy_kl_in=reward"], ["policy", "reference"]),
    ],
)
def test_no_pass_is_made_that_nothing_needs(overrides, passes):
    batch, _, made = make(rewarded(1.0, 0.0), *overrides)
    assert made == passes
    assert (batch.old_logprobs is None) == (not any("ratio=false" in each for each in overrides))
    assert (batch.reference_logprobs is None) == ("reference" not in passes)


def test_a_sample_without_a_verdict_does_not_shift_its_group():
    batch, rewards, _ = make(rewarded(1.0, None, 0.0, 0.0))
    alone, _, _ = make(rewarded(1.0, 0.0, 0.0))
    assert batch.advantages[[0, 2, 3]].tolist() == alone.advantages.tolist()
    assert batch.advantages[1] == 0
    assert math.isnan(rewards[1])
    assert not batch.select([1]).mask.any()


def test_an_overlong_completion_is_rejected_with_its_reward():
    group = [*rewarded(1.0, 0.0, 0.0), *rewarded(0.0, reason="length")]
    batch, _, _ = make(group, "grpo.overlong_filtering=true")
    alone, _, _ = make(group[:3])
    assert batch.advantages.tolist() == [*alone.advantages.tolist(), 0.0]


def test_kl_in_the_reward_is_subtracted_by_sequence_before_the_baseline():
    overrides = ["loss_fn.reference_policy_kl_in=reward", "loss_fn.reference_policy_kl_type=k1", *KL]
    group = [trajectory(0, 1.0, tokens=(3, 3, 1)), trajectory(0, 1.0, tokens=(1,))]
    batch, rewards, _ = make(group, *overrides, "grpo.normalize_rewards=false")
    # k1 = l - l_ref = 1 a token: 1 - 0.1 x 3 and 1 - 0.1 x 1.
    assert rewards.tolist() == pytest.approx([0.7, 0.9])
    assert batch.advantages.tolist() == pytest.approx([-0.1, 0.1])
