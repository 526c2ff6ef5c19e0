"""Whole runs whose policy and whose vLLM are each cut over two ranks: the weights arrive, step after step."""

import json

import pytest

from tests.support.mismatch import broken_bounds
from tests.support.small_run import run_small

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("shared_ray")]
TWO_BY_TWO = (
    "policy.generation.backend=vllm", "policy.generation.vllm_cfg.tensor_parallel_size=2", "cluster.launcher=ray",
    "cluster.cpu_ranks=2", "grpo.max_num_steps=3", "grpo.val_period=0", "data.validation=null",
)  # fmt: skip
COOL, HOT = "policy.generation.temperature=0.7", "policy.generation.temperature=1.3"
MEGATRON = ("policy.dtensor_cfg.enabled=false", "policy.megatron_cfg.enabled=true")


@pytest.mark.parametrize("policy", [
    pytest.param((*MEGATRON, COOL, "policy.megatron_cfg.tensor_model_parallel_size=2"), id="megatron-tensor"),
    pytest.param(
        (*MEGATRON, HOT, "policy.megatron_cfg.pipeline_model_parallel_size=2"), id="megatron-pipeline",
        marks=pytest.mark.nightly,
    ),
    pytest.param(
        (HOT, "policy.dtensor_cfg.tensor_parallel_size=2"), id="dtensor-tensor", marks=pytest.mark.nightly,
    ),
    pytest.param((COOL,), id="dtensor-data", marks=pytest.mark.nightly),
])  # fmt: skip
def test_two_ranks_of_the_policy_refit_two_ranks_of_vllm(tmp_path, policy):
    run_small(tmp_path / "run", *TWO_BY_TWO, *policy)
    steps = [json.loads(text) for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [step for step in steps if step["step"] > 0]
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        assert step["rollout/samples"] > 0
        assert broken_bounds([step]) == [], "of the weights of this very step, at its temperature"
        assert step["performance/refit_gib"] > 0
    assert steps[0]["train/grad_norm"] > 0
