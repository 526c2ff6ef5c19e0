from pathlib import Path

import pytest

import grpo
from grpo.config import load_config
from grpo.errors import ConfigError
from grpo.planning.repair import changes_that_fit
from grpo.planning.resident import Resident


@pytest.fixture
def repair(planned):
    def find(recipe, *overrides):
        plan = planned(recipe, *overrides)
        assert not plan.fits
        changes = changes_that_fit(plan, lambda further: planned(recipe, *overrides, *further))
        for change in changes:
            again = planned(recipe, *overrides, *change.overrides)
            assert again.fits
            assert again.memory == change.plan.memory
        return [change.overrides for change in changes]

    return find


def test_long_sequences_need_recomputing_first_of_all(repair):
    found = repair("grpo_math_8b", "policy.max_total_sequence_length=16384")
    assert found[0] == ("policy.dtensor_cfg.activation_checkpointing=true",)
    assert ("policy.dtensor_cfg.tensor_parallel_size=2",) in found
    assert all(len(each) == 1 for each in found)


def test_megatron_without_sequence_parallel(repair):
    overrides = ("policy.megatron_cfg.sequence_parallel=false", "policy.max_total_sequence_length=8192")
    found = repair("grpo_math_70b_megatron", *overrides)
    assert found[0] == ("policy.megatron_cfg.activation_checkpointing=true",)


def test_large_micro_batches_are_made_smaller(repair):
    found = repair(
        "grpo_math_8b", "policy.dtensor_cfg.activation_checkpointing=true", "policy.train_micro_batch_size=128"
    )
    assert found[0] == ("policy.sequence_packing.train_mb_tokens=65536",)


def test_the_engines_share_is_moved_no_further_than_it_must(repair):
    found = repair("grpo_math_70b", "policy.generation.vllm_cfg.gpu_memory_utilization=0.4")
    assert found[0] == ("policy.generation.vllm_cfg.gpu_memory_utilization=0.5",)
    assert ("policy.generation.vllm_cfg.tensor_parallel_size=8",) in found


def test_more_gpus_are_the_last_resort(repair):
    together, *alone = repair("grpo_math_8b", "cluster.gpus_per_node=1")
    assert together == ("policy.dtensor_cfg.activation_checkpointing=true", "cluster.gpus_per_node=2")
    assert alone[0] == ("cluster.gpus_per_node=4",)


def test_two_keys_where_no_single_one_is_enough(repair):
    overrides = ("cluster.gpus_per_node=2", "policy.generation.vllm_cfg.gpu_memory_utilization=0.2")
    assert repair("grpo_math_8b_megatron", *overrides) == [
        (
            "policy.megatron_cfg.activation_checkpointing=true",
            "policy.generation.vllm_cfg.gpu_memory_utilization=0.25",
        )
    ]


def shipped():
    recipes = [path.stem for path in sorted((Path(grpo.__file__).parent / "recipes").glob("*.yaml"))]
    return [recipe for recipe in recipes if load_config(recipe).config.policy.generation.backend == "vllm"]


@pytest.mark.parametrize("recipe", shipped())
def test_a_shipped_recipe_fits_an_h100_or_is_told_which_keys_of_placement_make_it_fit(planned, recipe):
    placement = {"sleep_level", "offload_reference", "offload_optimizer"}

    def with_placement(further):
        if not {each.partition("=")[0].rpartition(".")[2] for each in further} <= placement:
            raise ConfigError("no other key is tried")
        return planned(recipe, *further, resident=Resident.CONFIGURED)

    plan = with_placement(())
    assert plan.fits or [change.plan.fits for change in changes_that_fit(plan, with_placement)] == [True]


def test_what_costs_only_time_comes_before_more_gpus(repair):
    found = repair("grpo_math_8b", "cluster.gpus_per_node=4", "policy.max_total_sequence_length=16384")
    assert not any("num_nodes" in each or "gpus_per_node" in each for each in found[0])


def test_a_cache_that_is_too_large_is_left_to_the_engine(repair):
    found = repair("grpo_math_8b", "policy.generation.vllm_cfg.kv_cache_memory_bytes=99999999999")
    assert found[0] == ("policy.generation.vllm_cfg.kv_cache_memory_bytes=null",)


@pytest.mark.parametrize(
    ("recipe", "override", "most"),
    [("grpo_math_8b", "cluster.gpus_per_node=1", 4), ("grpo_math_70b", "cluster.num_nodes=1", 64)],
)
def test_as_few_gpus_as_do_with_all_that_costs_only_time(planned, recipe, override, most):
    def attempt(further):
        return planned(recipe, override, *further, resident=Resident.CONFIGURED)

    first, *others = changes_that_fit(attempt(()), attempt)
    assert first.plan.fits
    assert first.plan.gpus <= most
    assert all(first.plan.gpus < each.plan.gpus for each in others)
