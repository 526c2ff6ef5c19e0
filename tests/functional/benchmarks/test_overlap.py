"""The benchmark of asynchronous training as a whole, on CPUs and small."""

import pytest

from benchmarks.overlap import ASYNC, SYNC, measured, synchronous
from tests.unit.benchmarks.test_overlap import RECIPE

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("shared_ray")]
SMALL = (
    "grpo.num_prompts_per_step=4", "grpo.num_generations_per_prompt=4", "policy.train_global_batch_size=16",
    "policy.train_micro_batch_size=16", "policy.logprob_batch_size=16", "policy.generation.replay_lengths.mean=4",
    "policy.generation.max_new_tokens=10", "policy.max_total_sequence_length=24",
)  # fmt: skip


@pytest.mark.nightly
def test_engine_policy_and_both_are_measured_on_one_run(tmp_path):
    found = measured(str(RECIPE), [*SMALL, *ASYNC], steps=3, rounds=2, out=tmp_path)
    assert len(found.rounds) == 2
    assert all(min(each.generation, each.training) > 0 for each in found.rounds)
    assert found.rounds[-1].asynchronous == pytest.approx(found.parts["timing/total"])
    assert found.parts["rollout/age_steps_max"] <= 1
    assert found.parts["rollout/samples"] == 16
    assert (tmp_path / "overlap.json").is_file()
    assert synchronous(str(RECIPE), [*SMALL, *SYNC], steps=2) > 0
