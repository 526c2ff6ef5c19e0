# ruff: noqa: E501 - one case a line
import pytest

from grpo.config import layout, load_config


def resolved(recipe, *overrides):
    return load_config(recipe, overrides).config


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"),
    [
        ("tiny", [], (1, 1, 1, 1)),
        ("tiny", ["policy.generation.backend=vllm", "policy.generation.vllm_cfg.tensor_parallel_size=2"], (1, 2, 1, 1)),
        ("tiny", ["policy.generation.vllm_cfg.tensor_parallel_size=2"], (1, 1, 1, 1)),  # only vLLM divides a model
        ("tiny", ["cluster.cpu_ranks=2", "cluster.cpu_engine_ranks=3", "policy.generation.colocated.enabled=false"], (2, 3, 1, 2)),
        ("tiny", ["cluster.cpu_ranks=4", "cluster.launcher=ray", "policy.dtensor_cfg.tensor_parallel_size=2"], (4, 1, 2, 2)),
        ("grpo_math_8b", [], (8, 8, 1, 8)),
        ("grpo_math_70b", [], (64, 64, 8, 8)),
        ("grpo_math_70b_megatron", [], (64, 64, 16, 4)),
        ("grpo_math_70b", ["policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.num_nodes=4"], (32, 32, 8, 4)),
        ("grpo_math_8b", ["policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.gpus_per_node=4"], (4, 4, 1, 4)),
    ],
)  # fmt: skip
def test_the_gpus_are_shared_out(recipe, overrides, expected):
    shares = layout(resolved(recipe, *overrides))
    assert (
        shares.training_gpus,
        shares.generation_gpus,
        shares.model_parallel_size,
        shares.data_parallel_size,
    ) == expected


@pytest.mark.parametrize(("recipe", "overrides", "engines"), [
    ("grpo_math_70b", [], 16),
    ("grpo_math_70b", ["policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.num_nodes=4", "policy.generation.vllm_cfg.tensor_parallel_size=8"], 4),
    ("grpo_math_8b", ["policy.generation.vllm_cfg.tensor_parallel_size=2"], 4),
    ("grpo_math_8b", ["policy.generation.backend=hf", "policy.generation.vllm_cfg.tensor_parallel_size=2"], 8),
    ("tiny", ["policy.generation.backend=vllm", "cluster.cpu_engine_ranks=4", "policy.generation.vllm_cfg.tensor_parallel_size=2"], 2),
])  # fmt: skip
def test_engines_are_as_many_as_their_ranks_make(recipe, overrides, engines):
    assert layout(resolved(recipe, *overrides)).engines == engines


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], 1),
        (["policy.dtensor_cfg.tensor_parallel_size=4"], 4),
        (["policy.dtensor_cfg.tensor_parallel_size=2", "policy.dtensor_cfg.context_parallel_size=2"], 8),
        (["policy.dtensor_cfg.context_parallel_size=4"], 8),
    ],
)
def test_padded_lengths_are_multiples_of_what_the_layout_cuts(overrides, expected):
    assert resolved("grpo_math_8b", *overrides).policy.make_sequence_length_divisible_by == expected
