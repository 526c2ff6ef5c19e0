import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.matrix.compare.signflip import MOST_PAIRS, sign_flip_p


def brute_force(ratios):
    logs = [math.log(ratio) for ratio in ratios]
    observed = sum(logs)
    signs = list(product((1, -1), repeat=len(logs)))
    at_least = sum(
        sum(sign * value for sign, value in zip(pattern, logs, strict=True)) >= observed - 1e-9 for pattern in signs
    )
    return at_least / len(signs)


@settings(deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=9))
def test_it_counts_every_pattern_of_signs(ratios):
    assert math.isclose(sign_flip_p(ratios), brute_force(ratios), abs_tol=1e-12)


def test_known_values():
    assert sign_flip_p([1.05] * 5) == 1 / 32  # five pairs can just be significant, were they asked for
    assert sign_flip_p([1.05] * 6) == 1 / 64
    assert sign_flip_p([1.0] * 6) == 1.0
    assert sign_flip_p([1 / 1.05] * 6) == 1.0
    assert sign_flip_p([1.1, 1.1, 1.1, 1.1, 1.1, 1 / 1.01]) == 2 / 64


def test_forty_pairs_are_exact_too():
    assert math.isclose(sign_flip_p([1.01] * MOST_PAIRS), 2.0**-40)


@pytest.mark.parametrize("ratios", [[], [1.0] * 41, [1.0, 0.0], [1.0, -1.0], [float("nan")]])
def test_what_is_no_set_of_ratios(ratios):
    with pytest.raises(ValueError, match="positive ratios"):
        sign_flip_p(ratios)
