"""The main job learns its task, and learns nothing where there is nothing to learn."""

import pytest

from grpo.checkpoint.signals import StopRequest
from grpo.config import load_config
from grpo.trainer.run import train


def run(directory, *overrides):
    resolved = load_config("tiny", [f"logger.log_dir={directory}", "checkpointing.enabled=false", *overrides])
    return train(resolved, fresh=False, quiet=True, command=["grpo", "train"], stop=StopRequest())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.timeout(600)
def test_the_main_job_learns_from_random_weights(tmp_path, seed):
    finished = run(tmp_path / "run", f"grpo.seed={seed}")
    assert finished.chance <= 0.2
    assert finished.outcome.accuracy >= 0.9
    assert finished.outcome.steps <= 400


@pytest.mark.timeout(600)
def test_with_shuffled_rewards_the_same_run_stays_at_chance(tmp_path):
    finished = run(
        tmp_path / "run", "data.train.function=tests.support.tasks:wrong_answers", "grpo.max_num_steps=100",
        "grpo.val_period=0",
    )  # fmt: skip
    assert finished.outcome.reason == "steps"
    # Three standard deviations of 256 guesses above the best constant answer.
    assert finished.outcome.accuracy <= finished.chance + 3 * (finished.chance * (1 - finished.chance) / 256) ** 0.5
