import math

import pytest

from grpo.workers.policy.schedule import learning_rate_factor


def factors(count, **settings):
    values = {"warmup_steps": 0, "decay": "constant", "decay_steps": None, "min_ratio": 0.0, **settings}
    return [learning_rate_factor(update, **values) for update in range(count)]


def test_constant_from_the_first_update():
    assert factors(3) == [1.0, 1.0, 1.0]


def test_warm_up_starts_above_zero_and_ends_at_one():
    assert factors(6, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_decay_after_the_warm_up_to_the_minimum():
    expected = [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
    assert factors(8, warmup_steps=2, decay="linear", decay_steps=4, min_ratio=0.2) == pytest.approx(expected)


def test_cosine_decay():
    expected = [1.0, (1 + math.cos(math.pi / 4)) / 2, 0.5, (1 - math.cos(math.pi / 4)) / 2, 0.0, 0.0]
    assert factors(6, decay="cosine", decay_steps=4) == pytest.approx(expected)
    assert factors(5, decay="cosine", decay_steps=4, min_ratio=0.1)[-1] == pytest.approx(0.1)


def test_decay_without_a_length_is_refused():
    with pytest.raises(ValueError, match="'linear' needs decay_steps"):
        factors(1, decay="linear")
