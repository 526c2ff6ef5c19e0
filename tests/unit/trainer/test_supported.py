"""What this version can train, and what it refuses with the keys that ask for it."""

import pytest

from grpo.config import load_config
from grpo.errors import ConfigError
from grpo.trainer.supported import check_runnable, device_of, world_size


@pytest.mark.parametrize("overrides", [
    [],
    ["cluster.launcher=ray"],
    ["cluster.launcher=ray", "cluster.cpu_ranks=4"],
    ["cluster.launcher=ray", "cluster.cpu_ranks=4", "policy.dtensor_cfg.tensor_parallel_size=2",
     "policy.dtensor_cfg.sequence_parallel=true"],
    ["policy.dtensor_cfg.activation_checkpointing=true"],
    ["policy.megatron_cfg.enabled=true", "policy.dtensor_cfg.enabled=false"],
])  # fmt: skip
def test_runs_on_the_cpu_in_one_process_or_several(overrides):
    config = load_config("tiny", overrides).config
    check_runnable(config)
    assert world_size(config) == config.cluster.cpu_ranks
    assert device_of(config) == "cpu"


@pytest.mark.parametrize(("recipe", "overrides", "message"), [
    ("grpo_math_8b", [], "cluster.num_nodes=1 x cluster.gpus_per_node=8"),
    ("grpo_math_70b", [], "policy.dtensor_cfg.tensor_parallel_size=8"),
    ("tiny", ["policy.megatron_cfg.enabled=true", "policy.dtensor_cfg.enabled=false", "cluster.launcher=ray",
              "cluster.cpu_ranks=2"], "cluster.cpu_ranks=2 with policy.megatron_cfg.enabled=True"),
    ("tiny", ["cluster.launcher=ray", "cluster.cpu_ranks=2", "policy.dtensor_cfg.context_parallel_size=2"],
     "policy.dtensor_cfg.context_parallel_size=2"),
])  # fmt: skip
def test_what_cannot_be_trained_yet_is_named(recipe, overrides, message):
    with pytest.raises(ConfigError, match=message):
        check_runnable(load_config(recipe, overrides).config)
