"""The moves of a whole run whose policy and engine are in processes of their own."""

import json

import pytest

from tests.support.small_run import run_small

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("shared_ray")]
KL = ("loss_fn.reference_policy_kl_penalty=0.1", "loss_fn.force_on_policy_ratio=false", "grpo.max_num_steps=3")
MOVES = (
    "policy.offload_reference=true", "policy.generation.colocated.offload_optimizer=true",
    "policy.generation.colocated.offload_parameters=true", "policy.generation.colocated.sleep_level=2",
)  # fmt: skip
WALL_CLOCK = ("timing/", "performance/", "memory/")


def lines(directory):
    return [json.loads(text) for text in (directory / "metrics.jsonl").read_text().splitlines()]


def test_ranks_and_engine_move_and_train_as_in_one_process(tmp_path):
    run_small(tmp_path / "ray", *KL, *MOVES, "cluster.launcher=ray")
    run_small(tmp_path / "one", *KL)
    for ours, theirs in zip(lines(tmp_path / "ray"), lines(tmp_path / "one"), strict=True):
        assert {name: ours[name] for name in theirs if not name.startswith(WALL_CLOCK)} == {
            name: value for name, value in theirs.items() if not name.startswith(WALL_CLOCK)
        }
    last = lines(tmp_path / "ray")[-1]
    assert {"timing/refit/offload", "timing/refit/wake", "timing/policy_training/onload"} <= last.keys()
    assert last["performance/dispatches"] > lines(tmp_path / "one")[-1].get("performance/dispatches", 0)
