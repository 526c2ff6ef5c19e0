import math

import pytest

from grpo.matrix.judge.bounds import check_bounds
from grpo.matrix.schema import Bound

RECORDS = [{"step": n, "m": float(value), "timing/total": 10.0} for n, value in enumerate([1, 5, 2], start=1)]


@pytest.mark.parametrize(
    ("bound", "value", "holds"),
    [
        ({"upper": 5}, 5, True),
        ({"upper": 4}, 5, False),
        ({"lower": 1}, 1, True),
        ({"lower": 1.5}, 1, False),
        ({"upper": 2, "statistic": "median"}, 2, True),
        ({"upper": 1.9, "statistic": "median"}, 2, False),
        ({"lower": 2, "statistic": "last"}, 2, True),
        ({"lower": 2.1, "statistic": "last"}, 2, False),
        ({"upper": 0.5, "share_of": "timing/total"}, 0.5, True),
        ({"upper": 0.4, "share_of": "timing/total"}, 0.5, False),
    ],
)
def test_bounds(bound, value, holds):
    bound = Bound.model_validate({k: float(v) if isinstance(v, int) else v for k, v in bound.items()})
    (result,), failures = check_bounds({"m": bound}, RECORDS, RECORDS)
    assert (result.value, result.holds) == (value, holds)
    assert len(failures) == (not holds)


def test_what_was_not_measured_and_nan_break_a_bound():
    bound = {"m": Bound(upper=3.0)}
    assert "not measured" in check_bounds(bound, [{"step": 1}], [{"step": 1}])[1][0].message
    assert len(check_bounds(bound, [{"m": math.nan}], [])[1]) == 1


def test_only_judged_steps_count_but_for_the_last():
    (result,), _ = check_bounds({"m": Bound(upper=4.0)}, RECORDS[2:], RECORDS)
    assert result.holds
    (result,), _ = check_bounds({"m": Bound(upper=4.0, statistic="last")}, RECORDS[1:2], RECORDS)
    assert result.value == 2
