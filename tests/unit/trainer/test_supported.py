"""What this version can train, and what it refuses with the keys that ask for it."""

import pytest
import torch

from grpo.config import load_config
from grpo.errors import ConfigError
from grpo.trainer.supported import check_runnable, device_of, world_size

MEGATRON = ["policy.megatron_cfg.enabled=true", "policy.dtensor_cfg.enabled=false"]
FOUR = ["cluster.cpu_ranks=4"]


@pytest.mark.parametrize("overrides", [
    [],
    ["cluster.launcher=ray"],
    FOUR,
    [*FOUR, "policy.dtensor_cfg.tensor_parallel_size=2", "policy.dtensor_cfg.sequence_parallel=true"],
    ["policy.generation.backend=vllm", "policy.generation.vllm_cfg.tensor_parallel_size=2"],
    ["policy.generation.colocated.enabled=false", "cluster.cpu_engine_ranks=2"],
    ["policy.dtensor_cfg.activation_checkpointing=true"],
    MEGATRON,
    [*MEGATRON, *FOUR, "checkpointing.enabled=false", "policy.megatron_cfg.tensor_model_parallel_size=2",
     "policy.megatron_cfg.pipeline_model_parallel_size=2", "policy.megatron_cfg.sequence_parallel=true"],
])  # fmt: skip
def test_runs_on_the_cpu_in_one_process_or_several(overrides):
    config = load_config("tiny", overrides).config
    check_runnable(config)
    assert world_size(config) == config.cluster.cpu_ranks
    assert device_of(config) == "cpu"


@pytest.mark.parametrize(("recipe", "overrides"), [
    ("grpo_math_1b", []),
    ("grpo_math_1b", ["policy.dtensor_cfg.cpu_offload=true"]),
    ("grpo_math_8b", []),
    ("grpo_math_8b", ["policy.dtensor_cfg.tensor_parallel_size=4", "policy.dtensor_cfg.cpu_offload=true"]),
    ("grpo_math_8b_megatron", []),
    ("grpo_math_8b", ["policy.generation.vllm_cfg.tensor_parallel_size=2"]),
    ("grpo_math_8b", ["policy.generation.colocated.enabled=false",
                      "policy.generation.colocated.resources.gpus_per_node=4"]),
])  # fmt: skip
def test_runs_on_the_gpus_of_this_machine(recipe, overrides, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    config = load_config(recipe, overrides).config
    check_runnable(config)
    assert world_size(config) == config.cluster.gpus_per_node
    assert device_of(config) == "cuda"


def test_the_gpus_of_a_cluster_need_not_be_on_this_machine():
    overrides = ["cluster.num_nodes=2", "cluster.ray_address=10.0.0.5:6379"]
    config = load_config("grpo_math_8b", overrides).config
    check_runnable(config)
    assert world_size(config) == 16


@pytest.mark.parametrize(("recipe", "overrides", "message"), [
    ("grpo_math_8b", [], "cluster.gpus_per_node=8, but torch finds 2 CUDA GPUs on this machine"),
    ("grpo_math_8b", ["cluster.num_nodes=2"], "cluster.num_nodes=2 without cluster.ray_address"),
    ("grpo_math_70b", [], "cluster.num_nodes=8 without cluster.ray_address"),
    ("tiny", ["cluster.cpu_ranks=2", "policy.dtensor_cfg.context_parallel_size=2"],
     "policy.dtensor_cfg.context_parallel_size=2: this backend has no context parallel: torch's ring attention"),
    ("tiny", [*MEGATRON, "cluster.cpu_ranks=2", "policy.megatron_cfg.context_parallel_size=2"],
     "policy.megatron_cfg.context_parallel_size=2: this backend has no context parallel: Megatron-Core has it in"),
])  # fmt: skip
def test_what_cannot_be_trained_is_named(recipe, overrides, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=message):
        check_runnable(load_config(recipe, overrides).config)


def test_a_machine_without_a_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"cluster\.gpus_per_node=1, but torch finds no CUDA GPU"):
        check_runnable(load_config("grpo_math_1b").config)
