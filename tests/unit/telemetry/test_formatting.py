import math

import pytest

from grpo.telemetry import formatting as fmt


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (math.nan, "nan"), (-math.inf, "-inf"), (0.0, "0"), (3, "3"), (3.0, "3"), (0.94614, "0.9461"),
        (1234.56, "1235"), (13820.4, "13,820"), (-20000, "-20,000"), (8.03e9, "8.030e+09"), (0.00012, "1.20e-04"),
    ],
)  # fmt: skip
def test_numbers(value, text):
    assert fmt.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0 s"), (0.0004, "0.4 ms"), (0.012, "12 ms"), (0.3125, "0.312 s"), (47.2, "47.2 s"),
        (178, "2:58"),
    ],
)  # fmt: skip
def test_seconds(value, text):
    assert fmt.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(-1, "0:00"), (42.4, "0:42"), (725, "12:05"), (11262, "3:07:42"), (184062, "2 d 3:07:42")]
)
def test_durations(value, text):
    assert fmt.duration(value) == text


def test_shares_and_counts():
    assert [fmt.per_cent(share) for share in (0.1234, None, math.nan)] == ["12.3 %", "-", "-"]
    assert [fmt.count(n) for n in (12, 214_016, 8.03e9, 1.5e12)] == ["12", "214 k", "8.03 B", "1.5 T"]
