"""Whole runs of a sharded policy and vLLM of one rank or two: it samples from what is trained. At night."""

import pytest

from tests.support.run_metrics import lines
from tests.support.small_run import run_small

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("ray"),
    pytest.mark.usefixtures("shared_ray"),
]
MEGATRON = "policy.dtensor_cfg.enabled=false policy.megatron_cfg.enabled=true"
LAYOUTS = {
    "fsdp": "",
    "fsdp and tensor": "policy.dtensor_cfg.tensor_parallel_size=2",
    "megatron tensor": f"{MEGATRON} policy.megatron_cfg.tensor_model_parallel_size=2",
    "megatron pipeline": f"{MEGATRON} policy.megatron_cfg.pipeline_model_parallel_size=2",
}
PLACES = {
    "colocated": "policy.generation.colocated.sleep_level=2",
    "separate": "policy.generation.colocated.enabled=false",
}
RUN = [
    "cluster.launcher=ray", "cluster.cpu_ranks=2", "policy.generation.backend=vllm", "checkpointing.enabled=false",
    "loss_fn.force_on_policy_ratio=false", "policy.generation.refit.checksum=full", "grpo.max_num_steps=3",
    "grpo.val_period=0",
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("layout", "place"),
    [*((each, "colocated") for each in LAYOUTS), ("fsdp", "separate"), ("megatron tensor", "separate")],
)
def test_every_rank_of_the_engine_has_the_weights_of_every_update(tmp_path, layout, place, size):
    engine = [f"policy.generation.vllm_cfg.tensor_parallel_size={size}", f"cluster.cpu_engine_ranks={size}"]
    run_small(tmp_path / "run", *RUN, *engine, *LAYOUTS[layout].split(), *PLACES[place].split())
    steps = [line for line in lines(tmp_path / "run") if line["step"] > 0]
    assert len(steps) == 3
    for step in steps:
        assert step["timing/refit/load"] > 0
        assert step["train/token_mult_prob_error_max"] == pytest.approx(1.0, abs=1e-4)
    assert steps[-1]["train/grad_norm"] > 0
