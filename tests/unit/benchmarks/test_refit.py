import pytest

from benchmarks.refit import configured, goal_s, markdown, one_round, started_run
from grpo.models.public import public_shape


@pytest.fixture(scope="module")
def small():
    return configured("tiny", ["cluster.cpu_threads=1", "policy.generation.colocated.sleep_level=2"])


def test_a_round_is_what_lies_between_training_and_an_engine_that_is_ready(small):
    with started_run(small) as running:
        rounds = [one_round(running) for _ in range(3)]
    for each in rounds:
        assert {"timing/refit/wake", "timing/refit/export", "timing/refit/load"} <= each.keys()
        assert each["timing/refit"] >= sum(each[f"timing/refit/{part}"] for part in ("wake", "export", "load"))
        assert each["performance/refit_gib"] * 2**30 == rounds[0]["performance/refit_gib"] * 2**30 > 100_000
    page = markdown("in one process", small, rounds)
    assert "| whole |" in page
    assert "| wake |" in page
    assert "Goal" not in page


def test_bytes_are_held_against_what_an_h200_can_do():
    colocated = ["cluster.gpus_per_node=1", "policy.model_name=meta-llama/Llama-3.2-1B", "policy.random_weights=true"]
    config = configured("tiny", colocated)
    assert config.policy.model_name == str(public_shape("meta-llama/Llama-3.2-1B"))
    assert goal_s(config, 1.05e12)[1] == pytest.approx(1.020)
    rows = [{"timing/refit": 0.03, "timing/refit/transfer": 0.01, "timing/refit/load": 0.01,
             "performance/refit_gib": 2e9 / 2**30, "performance/refit_messages": 9.0}] * 3  # fmt: skip
    page = markdown("x", config, rows)
    assert "2.000 GB in 9 messages" in page
    assert "100.0 GB/s" in page
    assert "Goal, 20 ms + bytes / 1.05 TB/s: 21.9 ms; measured 20.0 ms." in page
