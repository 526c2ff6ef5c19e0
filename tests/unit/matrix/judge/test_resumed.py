import pytest

from grpo.matrix.judge.resumed import check_resumed
from grpo.matrix.schema import Interruption
from tests.support.matrix import case, evidence, measured, record, verdict

KILLED = Interruption(after_step=8, equal={"train/reward": 0, "train/grad_norm": 0.1})


def line(step, reward=0.5, norm=2.0):
    return {"step": step, "train/reward": reward, "train/grad_norm": norm}


def messages(discarded, again=None, resumed=(6,), interrupted=KILLED):
    metrics = [line(step) for step in range(1, 11)] if again is None else again
    return [one.message for one in check_resumed(interrupted, metrics, discarded, resumed)]


def test_a_run_that_is_to_be_left_alone_is_not_checked():
    assert messages([], resumed=(), interrupted=None) == []


def test_steps_that_came_out_the_same_are_right():
    assert messages([line(7), line(8, norm=2.2)]) == []


@pytest.mark.parametrize("changed", [{"reward": 0.5000001}, {"norm": 1.5}, {"reward": float("nan")}])
def test_a_step_that_came_out_otherwise_is_named(changed):
    (message,) = messages([line(7, **changed), line(8)])
    assert " of step 7 was " in message


def test_a_run_that_was_never_killed_or_went_on_elsewhere_says_nothing():
    assert "never resumed" in messages([], resumed=())[0]
    assert "resumed after step 9" in messages([], resumed=(9,))[0]
    assert "resumed after step 0" in messages([], resumed=(0,))[0]
    assert "no step was trained twice" in messages([])[0]
    assert "no step was trained twice" in messages([line(20)])[0]


def test_a_metric_that_is_not_there_is_a_failure():
    assert messages([{"step": 7, "train/grad_norm": 2.0}]) == [
        "train/reward is missing in step 7, which was trained twice"
    ]


def test_the_judge_asks_for_it():
    records = [record(step) for step in range(1, 26)]
    interrupted = {"after_step": 8, "equal": {"timing/total": 0.0}}
    result = verdict(evidence(records), case(interrupted=interrupted), measured())
    assert (result.outcome, result.failure) == ("fail", "correctness")
    went_on = evidence(records, resume_steps=[6], discarded=[records[6]])
    assert verdict(went_on, case(interrupted=interrupted, min_steps=15), measured()).failure is None
