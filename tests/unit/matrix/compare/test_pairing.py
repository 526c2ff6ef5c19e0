import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.matrix.compare.pairing import computed_tokens, pair_by_tokens

COUNTS = st.lists(st.integers(50, 150), max_size=7)


def most_pairs(first, second, tolerance):
    """By trying everything (augmenting paths)."""
    allowed = [[abs(a - b) <= tolerance * max(a, b) for b in second] for a in first]
    partner = {}

    def place(left, seen):
        for right, fits in enumerate(allowed[left]):
            if fits and right not in seen:
                seen.add(right)
                if right not in partner or place(partner[right], seen):
                    partner[right] = left
                    return True
        return False

    return sum(place(left, set()) for left in range(len(first)))


@settings(deadline=None)
@given(COUNTS, COUNTS, st.sampled_from([0.0, 0.01, 0.1, 0.3]))
def test_as_many_pairs_as_there_can_be_each_step_once_and_within_the_tolerance(first, second, tolerance):
    pairs = pair_by_tokens(first, second, tolerance)
    assert len({left for left, _ in pairs}) == len({right for _, right in pairs}) == len(pairs)
    assert all(abs(first[a] - second[b]) <= tolerance * max(first[a], second[b]) for a, b in pairs)
    assert len(pairs) == most_pairs(first, second, tolerance)


def test_computed_tokens_count_padding():
    record = {
        "rollout/samples": 512.0, "rollout/prompt_tokens_per_sample": 9.0, "rollout/generated_tokens_per_sample": 7.0,
        "train/padding_efficiency": 0.8,
    }  # fmt: skip
    assert math.isclose(computed_tokens(record), 512 * 16 / 0.8)
    assert computed_tokens({**record, "train/computed_tokens": 11.0}) == 11.0


@pytest.mark.parametrize("missing", ["rollout/samples", "train/padding_efficiency"])
def test_a_step_that_does_not_say(missing):
    record = {
        "rollout/samples": 1.0, "rollout/prompt_tokens_per_sample": 1.0, "rollout/generated_tokens_per_sample": 1.0,
        "train/padding_efficiency": 1.0,
    }  # fmt: skip
    assert computed_tokens({name: value for name, value in record.items() if name != missing}) is None
