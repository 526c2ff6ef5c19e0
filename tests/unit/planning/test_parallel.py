import pytest

from grpo.config import load_config
from grpo.errors import ConfigError
from grpo.models.dimensions import Dimensions
from grpo.planning.parallel import Parallel, bus_bandwidth, check_divides, training_parallel

SEVENTY = Dimensions(layers=80, hidden=8192, intermediate=28672, heads=64, kv_heads=8, head_dim=128, vocab=128256)


def parallel_of(recipe, *overrides):
    return training_parallel(load_config(recipe, overrides).config)


def test_the_70b_recipes():
    assert parallel_of("grpo_math_70b") == Parallel("dtensor", 8, 1, 8, 8, sequence_parallel=True)
    assert parallel_of("grpo_math_70b_megatron") == Parallel("megatron", 4, 4, 4, 8, sequence_parallel=True)


def test_a_separate_engine_takes_its_gpus_from_the_trainer():
    found = parallel_of(
        "grpo_math_8b", "policy.generation.colocated.enabled=false",
        "policy.generation.colocated.resources.gpus_per_node=4", "policy.dtensor_cfg.activation_checkpointing=true",
    )  # fmt: skip
    assert found == Parallel("dtensor", 1, 1, 4, 8, recompute=True)


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("tiny", "grpo.seed=1", "cluster.gpus_per_node = 0"),
        ("grpo_math_8b", "policy.dtensor_cfg.context_parallel_size=2", "context_parallel_size = 2"),
        ("grpo_math_8b_megatron", "policy.megatron_cfg.context_parallel_size=2", "context_parallel_size = 2"),
    ],
)
def test_what_no_plan_covers(recipe, override, message):
    with pytest.raises(ConfigError, match=message):
        parallel_of(recipe, override)


@pytest.mark.parametrize(
    ("parallel", "engine", "message"),
    [
        (Parallel("dtensor", 16, 1, 1, 16), 1, r"dtensor_cfg.tensor_parallel_size = 16: .*key and value heads, 8"),
        (Parallel("megatron", 1, 3, 1, 8), 1, r"pipeline_model_parallel_size = 3: .*layers, 80"),
        (Parallel("dtensor", 1, 1, 1, 8), 3, r"vllm_cfg.tensor_parallel_size = 3"),
    ],
)
def test_sizes_that_do_not_divide(parallel, engine, message):
    with pytest.raises(ConfigError, match=message):
        check_divides(SEVENTY, parallel, engine)


def test_an_engine_may_repeat_key_and_value_heads():
    check_divides(SEVENTY, Parallel("dtensor", 8, 1, 1, 8), 16)


@pytest.mark.parametrize(
    ("size", "stride", "rate"),
    [
        (8, 1, 340e9),  # within a node
        (2, 4, 340e9),
        (8, 8, 50e9),  # one member a node, one port
        (16, 4, 100e9),  # two members a node, two ports
        (64, 1, 340e9),  # eight ports outdo NVLink's measured rate
    ],
)
def test_a_ring_has_as_many_ports_as_members_in_a_node(partition, size, stride, rate):
    assert bus_bandwidth(partition, size=size, stride=stride, gpus_per_node=8) == rate


def test_megatrons_data_parallel_options():
    found = parallel_of("grpo_math_8b_megatron")
    assert (found.distributed_optimizer, found.overlap_grad_reduce, found.overlap_param_gather) == (True, False, False)
    section = "policy.megatron_cfg.distributed_data_parallel_config"
    assert not parallel_of("grpo_math_8b_megatron", f"{section}.use_distributed_optimizer=false").distributed_optimizer
    found = parallel_of(
        "grpo_math_8b_megatron", f"{section}.overlap_grad_reduce=true", f"{section}.overlap_param_gather=true"
    )
    assert (found.overlap_grad_reduce, found.overlap_param_gather) == (True, True)
