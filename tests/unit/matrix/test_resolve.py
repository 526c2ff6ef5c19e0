import pytest

from grpo.errors import MatrixError
from grpo.matrix.resolve import hours_of, resolve_case
from tests.support.matrix import case


def tiny(**changes):
    fields = {"gpus_per_node": 0, "checks": {"against_reference": []}, "overrides": ["grpo.stop_at_reward=null"]}
    return case(**(fields | changes))


def test_the_cases_fields_are_overrides():
    config = resolve_case(tiny(steps=33)).config
    assert (config.grpo.max_num_steps, config.cluster.gpus_per_node) == (33, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overrides": ["grpo.sed=1"]}, r"case some-case: override: unknown key grpo.sed; did you mean grpo.seed\?"),
        ({"parallel": {"tensor": 2}}, "parallel says tensor 2,.* but its configuration has tensor 1"),
        ({"warmup_steps": 4, "checks": {}}, "warmup_steps = 4: at least 5"),
    ],
)
def test_what_does_not_hold_is_named(changes, message):
    with pytest.raises(MatrixError, match=message):
        resolve_case(tiny(**changes))


def test_cuda_graphs_take_ten_steps_to_warm_up():
    one = case(recipe="grpo_math_8b", parallel={"data": 8}, steps=40, warmup_steps=9)
    with pytest.raises(MatrixError, match="at least 10, since the engine records CUDA graphs"):
        resolve_case(one)
    resolve_case(one.model_copy(update={"warmup_steps": 10}))
    resolve_case(one.model_copy(update={"overrides": ["policy.generation.vllm_cfg.enforce_eager=true"]}))


def test_a_case_that_only_informs_may_warm_up_for_one_step():
    one = case(recipe="grpo_math_8b", parallel={"data": 8}, steps=4, warmup_steps=1, min_steps=3)
    resolve_case(one)
    with pytest.raises(MatrixError, match="at least 1,"):
        resolve_case(one.model_copy(update={"warmup_steps": 0}))


@pytest.mark.parametrize(
    ("after_step", "saves", "message"),
    [
        (3, ["checkpointing.enabled=false"], "no checkpoints to go on from"),
        (2, [], r"after_step = 2: with checkpointing.save_period=2 and 6 steps"),
        (4, [], "between two"),
        (5, [], "two before the end"),
        (3, ["checkpointing.save_period=3"], "after the first checkpoint"),
    ],
)
def test_a_kill_must_leave_a_step_that_is_trained_twice(after_step, saves, message):
    overrides = ["grpo.stop_at_reward=null", "checkpointing.save_period=2", *saves]
    one = tiny(steps=6, overrides=overrides, interrupted={"after_step": after_step, "equal": {"train/loss": 0.0}})
    with pytest.raises(MatrixError, match=message):
        resolve_case(one)
    resolve_case(tiny(steps=6, overrides=overrides[:2], interrupted={"after_step": 3, "equal": {"train/loss": 0.0}}))


def test_hours_are_up_to_the_time_limit_on_every_partition():
    assert hours_of(case(time_limit="01:30:00", nodes=2)) == (24.0, 0.0)
    assert hours_of(tiny(time_limit="00:30:00", partitions=["a", "b"])) == (0.0, 1.0)
