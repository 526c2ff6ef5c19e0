"""The benchmark of asynchronous training as a whole, on CPUs and small."""

import pytest

from benchmarks.overlap import ASYNC, SYNC, measured, synchronous

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("shared_ray")]
SMALL = (
    "grpo.num_prompts_per_step=4", "grpo.num_generations_per_prompt=4", "policy.train_global_batch_size=16",
    "policy.generation.replay_lengths.mean=4", "policy.generation.replay_lengths.shape=0.7",
    "policy.generation.max_new_tokens=10", "policy.max_total_sequence_length=24", "grpo.max_num_steps=6",
)  # fmt: skip


@pytest.mark.nightly
def test_engine_policy_and_both_are_measured_on_one_run():
    found = measured("tiny", [*SMALL, *ASYNC], steps=3)
    assert min(found.generation, found.training) > 0
    assert found.asynchronous == found.parts["timing/total"]
    assert found.parts["rollout/age_steps_max"] <= 1
    assert found.parts["rollout/samples"] == 16
    assert synchronous("tiny", [*SMALL, *SYNC]) > 0
