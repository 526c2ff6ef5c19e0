import pytest

from grpo.matrix.judge.steps import check_steps, select
from tests.support.matrix import record


def numbers(records):
    return [one["step"] for one in records]


def test_the_warm_up_is_left_out_at_the_start_and_after_every_resume():
    chosen = select([record(step) for step in range(1, 13)], [6, 8], warmup_steps=2)
    assert numbers(chosen.warmup) == [1, 2, 7, 8, 9, 10]
    assert numbers(chosen.judged) == [3, 4, 5, 6, 11, 12]


def test_checkpoints_validations_and_the_step_that_reuses_a_refit_are_apart():
    records = [record(step) for step in range(1, 9)]
    records[3] = record(4, {"checkpoint": 2.0})
    records[5] = record(6, {"validation": 5.0})
    chosen = select(records, [], warmup_steps=1)
    assert numbers(chosen.apart) == [4, 6, 7]
    assert numbers(chosen.judged) == [2, 3, 5, 8]
    assert chosen.summary().apart_total == 149.0  # of 149, 152 and 147


def test_a_validation_before_the_first_step_is_no_step():
    records = [{"step": 0, "timing/total": 1.0, "timing/validation": 1.0}, *(record(step) for step in range(1, 5))]
    chosen = select(records, [], warmup_steps=0)
    assert numbers(chosen.training) == numbers(chosen.judged) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([1, 2, 4], "the run lacks step 3"),
        ([1, 2], "the run lacks 2 steps, the first of them 3"),
        ([1, 2, 2, 3, 4], "steps do not ascend"),
        ([1, 2, 3, 4, 1, 2, 3, 4], "steps do not ascend"),
        ([1, 2, 3, 4, 3, 4], "steps do not ascend"),
        ([1, 2, 3, 4, 5, 6], "the case has 4 steps, and the run goes on to step 6"),
        ([1, 2, 3, 10**18], "the run lacks step 4"),
    ],
)
def test_gaps_repeats_and_runs_cut_short(steps, message):
    chosen = select([record(step) for step in steps], [], warmup_steps=0)
    assert message in "; ".join(one.message for one in check_steps(chosen, steps=4, least=1))


def test_a_case_of_very_many_steps_takes_no_memory_for_each():
    chosen = select([record(step) for step in (1, 2, 4)], [], warmup_steps=0)
    (finding,) = check_steps(chosen, steps=10**15, least=1)
    assert finding.message.endswith(f"the run lacks {10**15 - 3} steps, the first of them 3")


def test_too_few_steps():
    chosen = select([record(step) for step in range(1, 25)], [], warmup_steps=5)
    (finding,) = check_steps(chosen, steps=24, least=20)
    assert finding.rule == 1
    assert "19 steps to judge, and 20 are needed" in finding.message
    chosen = select([record(step) for step in range(1, 26)], [], warmup_steps=5)
    assert check_steps(chosen, steps=25, least=20) == []
