import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.data.lengths import completion_lengths
from grpo.errors import ConfigError


@settings(deadline=None)
@given(st.integers(1, 600), st.floats(0.05, 0.9), st.integers(50, 5000), st.sampled_from([0.7, 1.0, 2.0]))
def test_mean_order_and_maximum(count, share, maximum, shape):
    mean = max(5.0, share * maximum)
    found = completion_lengths(count, mean=mean, maximum=maximum, shape=shape)
    assert len(found) == count
    assert list(found) == sorted(found)
    assert 1 <= found[0] <= found[-1] <= maximum
    assert sum(found) / count == pytest.approx(mean, abs=0.5)


def test_the_longest_of_an_exponential_is_the_logarithm_of_the_number_times_the_mean():
    found = completion_lengths(1000, mean=100, maximum=100_000)
    assert found[-1] == pytest.approx(100 * math.log(2000), rel=0.01)  # the midpoint of the last of a thousand parts


def test_a_larger_shape_has_a_lighter_tail():
    tails = [completion_lengths(500, mean=100, maximum=10_000, shape=shape)[-1] for shape in (0.7, 1.0, 2.0, 20.0)]
    assert tails == sorted(tails, reverse=True)
    assert tails[-1] < 120


def test_tails_are_cut_at_the_maximum_and_the_mean_is_kept():
    found = completion_lengths(1000, mean=100, maximum=200)
    assert found[-1] == 200
    assert sum(found) / 1000 == pytest.approx(100, abs=0.5)


@pytest.mark.parametrize(
    ("mean", "shape", "message"), [(0, 1, "mean of 0 tokens"), (201, 1, "1 to 200"), (9, 0, "shape")]
)
def test_what_cannot_be(mean, shape, message):
    with pytest.raises(ConfigError, match=message):
        completion_lengths(10, mean=mean, maximum=200, shape=shape)
