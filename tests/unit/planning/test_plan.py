"""Properties of whole plans."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo.errors import ConfigError

PROPERTIES = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
RECIPES = st.sampled_from(["grpo_math_8b", "grpo_math_70b"])


def held(plan, *names):
    """Bytes of some resources in training."""
    training = next(each for each in plan.memory if each.phase == "policy_training")
    return {name: training.bytes[name] for name in names}


@PROPERTIES
@given(RECIPES, st.sampled_from([1, 2, 4]), st.booleans())
def test_more_tensor_parallel_ranks_never_hold_more(planned, recipe, tensor, recompute):
    def plan(size):
        return planned(
            recipe, "cluster.num_nodes=8", "policy.dtensor_cfg.sequence_parallel=false",
            f"policy.dtensor_cfg.tensor_parallel_size={size}",
            f"policy.dtensor_cfg.activation_checkpointing={recompute}",
        )  # fmt: skip

    names = ("gathered", "activations", "logits")
    more, fewer = held(plan(2 * tensor), *names), held(plan(tensor), *names)
    assert all(more[name] <= fewer[name] * (1 + 1e-9) for name in names)


@PROPERTIES
@given(RECIPES, st.sampled_from([8, 16, 32]))
def test_more_nodes_never_hold_more_nor_take_longer(planned, recipe, nodes):
    some, twice = (planned(recipe, f"cluster.num_nodes={count}") for count in (nodes, 2 * nodes))
    assert twice.memory[-1].total <= some.memory[-1].total
    assert twice.generation.seconds <= some.generation.seconds
    compute = [sum(part.seconds for part in plan.times[3].parts if part.bound == "compute") for plan in (some, twice)]
    assert compute[1] <= compute[0]


@PROPERTIES
@given(RECIPES, st.sampled_from([False, True]))
def test_recomputing_and_sharing_the_sequence_never_hold_more(planned, recipe, recompute):
    names = ("activations",)
    overrides = ("cluster.num_nodes=8", "policy.dtensor_cfg.tensor_parallel_size=4")
    again = f"policy.dtensor_cfg.activation_checkpointing={recompute}"
    whole = planned(recipe, *overrides, again, "policy.dtensor_cfg.sequence_parallel=false")
    shared = planned(recipe, *overrides, again, "policy.dtensor_cfg.sequence_parallel=true")
    assert held(shared, *names)["activations"] <= held(whole, *names)["activations"]
    assert shared.activations.with_recompute <= shared.activations.without_recompute


@PROPERTIES
@given(st.integers(50, 1500), st.integers(1, 500))
def test_longer_completions_never_take_less_time(planned, mean, more):
    short, long = (planned("grpo_math_8b", completion_tokens=each) for each in (mean, mean + more))
    assert short.generation.seconds <= long.generation.seconds * 1.001
    assert short.flops.training.total < long.flops.training.total


@PROPERTIES
@given(st.sampled_from(["grpo_math_8b", "grpo_math_8b_megatron", "grpo_math_70b", "grpo_math_70b_megatron"]))
def test_no_plan_beats_the_machine(planned, recipe):
    plan = planned(recipe)
    assert 0 < plan.training_mfu < 667 / 989.4
    assert plan.seconds == pytest.approx(sum(part.seconds for each in plan.times for part in each.parts))
    assert all(part.seconds >= 0 for each in plan.times for part in each.parts)
    assert [each.phase for each in plan.times] == ["refit", "generation", "logprobs", "policy_training", "other"]


def test_the_users_command_lines_are_planned(planned):
    plan = planned(
        "examples/configs/grpo_math_8B.yaml", "policy.model_name=meta-llama/Llama-3.1-70B",
        "policy.tokenizer.name=meta-llama/Llama-3.1-70B-Instruct",
        "policy.generation.vllm_cfg.tensor_parallel_size=4", "policy.max_total_sequence_length=4096",
        "cluster.num_nodes=8", "policy.dtensor_cfg.enabled=True", "policy.dtensor_cfg.tensor_parallel_size=8",
        "policy.dtensor_cfg.sequence_parallel=True", "policy.dtensor_cfg.activation_checkpointing=False",
        "loss_fn.use_importance_sampling_correction=True", "policy.sequence_packing.enabled=False",
        "policy.dynamic_batching.enabled=True",
    )  # fmt: skip
    recipe = planned("grpo_math_70b")
    assert plan.fits
    assert plan.times == recipe.times
    assert plan.memory == recipe.memory


def test_an_engine_without_room_for_one_sequence_does_not_fit(planned):
    plan = planned("grpo_math_70b", "policy.generation.vllm_cfg.gpu_memory_utilization=0.4")
    (shortage,) = plan.shortages
    assert shortage.startswith("gpu_memory_utilization = 0.4 leaves nothing for the engine's KV cache; ")
    assert shortage.endswith("one sequence of 4096 tokens needs 0.3 GiB")


def test_transformers_engine_is_not_covered(planned):
    with pytest.raises(ConfigError, match=r"policy\.generation\.backend = hf"):
        planned("grpo_math_1b", "policy.generation.backend=hf")
