import math

import pytest

from grpo.matrix.judge.sanity import REQUIRED, check_values
from tests.support.matrix import record


def messages(records, required=REQUIRED):
    return [finding.message for finding in check_values(records, required)]


def test_a_whole_record_has_no_fault():
    assert messages([record(1), record(2)]) == []


@pytest.mark.parametrize("metric", REQUIRED)
def test_any_missing_metric_is_a_failure(metric):
    assert f"{metric} is missing in step 2" in messages([record(1), record(2, **{metric: None})])
    assert f"{metric} is missing throughout" in messages([record(1, **{metric: None})])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_a_failure_in_any_metric_and_step(value):
    assert messages([record(1, **{"train/anything": value}), record(2)]) == [
        "train/anything is NaN or infinite in step 1"
    ]


@pytest.mark.parametrize("metric", ["train/grad_norm", "train/advantage_abs_mean"])
def test_nothing_to_learn_from(metric):
    idle = [record(step, **{metric: 0.0}) for step in (1, 2)]
    assert f"{metric} is 0 throughout" in messages(idle)[0]
    assert messages([*idle, record(3)]) == []


@pytest.mark.parametrize(("mfu", "fails"), [(0.4, False), (0.0, True), (1.0, True), (2.73, True), (-0.1, True)])
def test_flop_utilisation_lies_between_0_and_1(mfu, fails):
    assert bool(messages([record(1, **{"performance/mfu": mfu})])) == fails


def test_phases_must_sum_to_the_total():
    assert messages([record(1, **{"timing/total": 190.0})]) == [
        "the phases and timing/other do not sum to timing/total in step 1"
    ]
    (message,) = messages([record(1, {"refit": -1.0})])
    assert "timing/refit takes no time or less" in message
    assert any("timing/total takes no time" in one for one in messages([record(1, **{"timing/total": 0.0})]))
