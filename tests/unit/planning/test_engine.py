from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.planning.engine import StepCosts, _simulate, kv_bytes_per_token
from grpo.workers.generation.vllm_arguments import engine_arguments

COSTS = StepCosts(
    weights=5.0, compute_per_sequence=0.5, kv_per_token=0.01, overhead=2.0, overhead_per_sequence=0.1,
    collective_per_sequence=0.03,
)  # fmt: skip


def step_by_step(lengths, prompt, concurrent, costs):
    """The same engine, one token step at a time."""
    waiting, running, totals, steps = list(lengths), [], [0.0] * 4, 0
    while waiting or running:
        while waiting and len(running) < concurrent:
            running.append([prompt, waiting.pop(0)])
        steps += 1
        for each in running:
            each[0] += 1
            each[1] -= 1
        totals[0] += max(costs.weights, len(running) * costs.compute_per_sequence)
        totals[1] += sum(context for context, _ in running) * costs.kv_per_token
        totals[2] += costs.overhead + len(running) * costs.overhead_per_sequence
        totals[3] += len(running) * costs.collective_per_sequence
        running = [each for each in running if each[1]]
    return (steps, *totals)


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(0, 20), st.integers(1, 35))
def test_the_simulation_is_that_of_every_single_step(lengths, prompt, concurrent):
    found = _simulate(lengths, prompt, concurrent, COSTS)
    assert found == pytest.approx(step_by_step(lengths, prompt, concurrent, COSTS))


def test_the_8b_engine_by_hand(planned):
    plan = planned("grpo_math_8b", completion_tokens=777)
    engine = plan.engine
    assert engine.weights == 2 * 8_030_261_248
    assert kv_bytes_per_token(plan.setting) == 2 * 32 * 8 * 128 * 2
    workspace = 16384 * 2 * (3 * 14336 + 4 * 4096) + 2 * 4 * 1024 * 128256
    assert engine.workspace == workspace
    memory = plan.setting.partition.memory_bytes.value
    assert engine.kv_cache == pytest.approx(0.6 * memory - engine.weights - workspace - 0.6 * 2**30, abs=1)
    assert engine.kv_tokens == int(engine.kv_cache // 131072)


def test_generation_by_hand_where_lengths_are_pinned(planned, partition):
    pinned = ("policy.generation.max_new_tokens=100", "policy.generation.min_new_tokens=100")
    plan = planned("grpo_math_8b", *pinned, prompt_tokens=50)
    found = plan.generation
    assert (found.engines, found.sequences, found.concurrent, found.steps) == (8, 256, 256, 100)
    weights = 8_030_261_248 - 4096 * 128256 - 65 * 4096
    assert found.weights_s == pytest.approx(100 * 256 * 2 * weights / 667e12)  # longer than reading them
    assert found.weights_s > 100 * 2 * weights / partition.memory_bandwidth.value
    assert found.kv_cache_s == pytest.approx(256 * (100 * 50 + 5050) * 131072 / partition.memory_bandwidth.value)
    assert found.overhead_s == pytest.approx(100 * (1.19e-3 + 256 * 6.4e-6))
    assert found.collective_s == 0
    assert found.prefill_s == pytest.approx(8 * 50 * 2 * weights / 667e12)  # eight prompts of 32 completions


def test_a_small_cache_takes_the_sequences_in_turns(planned):
    whole = planned("grpo_math_8b", completion_tokens=777)
    small = planned(
        "grpo_math_8b", "policy.generation.vllm_cfg.kv_cache_memory_bytes=10000000000", completion_tokens=777
    )
    assert small.engine.kv_tokens == 10_000_000_000 // 131072
    assert small.generation.concurrent == 10_000_000_000 // 131072 // int(small.setting.workload.lengths.mean + 128)
    assert small.generation.steps > whole.generation.steps
    assert small.generation.seconds > whole.generation.seconds


def test_the_engine_is_started_for_as_many_sequences_as_the_plan_says(planned):
    for recipe, *overrides in (
        ("grpo_math_8b",),
        ("grpo_math_8b", "grpo.num_prompts_per_step=8", "policy.train_global_batch_size=256"),
        ("grpo_math_8b", "policy.generation.vllm_cfg.max_num_seqs=64"),
    ):
        plan = planned(recipe, *overrides)
        started = engine_arguments(plan.setting.config, Path("model"))
        assert plan.engine.max_sequences == started["max_num_seqs"]
        assert "max_num_batched_tokens" not in started  # vLLM's own default, as the plan has it


def test_a_fixed_number_of_sequences(planned):
    assert planned("grpo_math_8b", "policy.generation.vllm_cfg.max_num_seqs=64").generation.concurrent == 64


def test_heads_that_several_ranks_share_are_repeated(planned):
    two, four = (
        planned("grpo_math_1b", "cluster.gpus_per_node=4", f"policy.generation.vllm_cfg.tensor_parallel_size={size}")
        for size in (2, 4)
    )
    assert kv_bytes_per_token(two.setting) == kv_bytes_per_token(four.setting)  # Qwen 2.5 1.5B has two
