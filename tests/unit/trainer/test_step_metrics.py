import math

import pytest
import torch

from grpo.rollout.source import Rollout
from grpo.trainer.step_metrics import (
    reward_metrics,
    rollout_metrics,
    update_metrics,
)
from grpo.workers.protocol import UpdateResult
from tests.support.rollouts import trajectory


def rollout(trajectories, **rest):
    return Rollout(
        trajectories=trajectories, **{"generated_samples": 4, "generated_tokens": 90, "prompt_tokens": 30, **rest}
    )


def test_lengths_and_counts():
    metrics = rollout_metrics(
        rollout(
            [trajectory(0, 1.0, tokens=[3] * 2), trajectory(0, None, tokens=[3] * 6, reason="length")],
            metrics={"rollout/own": 1.0},
        )
    )
    assert metrics["rollout/generated_tokens_per_sample"] == 4
    assert metrics["rollout/completion_length_max"] == 6
    assert metrics["rollout/prompt_tokens_per_sample"] == 3
    assert metrics["rollout/truncated_fraction"] == 0.5
    assert metrics["rollout/reward_failures"] == 1
    assert metrics["rollout/own"] == 1


def test_rewards_leave_out_rejected_samples():
    trajectories = [trajectory(0, 0.5, raw=1.0), trajectory(0, None), trajectory(1, 0.0), trajectory(1, 0.0)]
    metrics = reward_metrics(
        trajectories, torch.tensor([0.5, math.nan, 0.0, 0.0], dtype=torch.float64), torch.tensor([1.0, 0.0, 0.0, -1.0])
    )
    assert metrics["train/reward"] == pytest.approx(0.5 / 3)
    assert metrics["train/raw_reward"] == pytest.approx(1 / 3)
    assert metrics["train/advantage_abs_mean"] == 0.5


def update(tokens, sequences, **metrics):
    return UpdateResult({"trained_tokens": tokens, "trained_sequences": sequences, **metrics}, int(tokens))


def test_one_update_is_given_as_it_is():
    assert update_metrics([update(3.0, 1.0, loss=0.25)]) == {
        "train/trained_tokens": 3.0, "train/trained_sequences": 1.0, "train/loss": 0.25,
    }  # fmt: skip


def test_updates_of_a_step_are_combined_by_what_each_figure_is():
    metrics = update_metrics(
        [
            update(30.0, 2.0, loss=1.0, grad_norm=2.0, probs_ratio=1.0, probs_ratio_max=3.0, probs_ratio_min=0.5),
            update(10.0, 2.0, loss=3.0, grad_norm=4.0, probs_ratio=2.0, probs_ratio_max=2.0, probs_ratio_min=0.2),
        ]
    )
    assert metrics == {
        "train/trained_tokens": 40.0, "train/trained_sequences": 4.0, "train/loss": 2.0, "train/grad_norm": 3.0,
        "train/probs_ratio": 1.25, "train/probs_ratio_max": 3.0, "train/probs_ratio_min": 0.2,
    }  # fmt: skip
