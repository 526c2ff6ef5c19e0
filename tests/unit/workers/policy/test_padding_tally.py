import pytest

from grpo.workers.policy.padding_tally import METRIC, PaddingTally


def test_passes_count_by_the_tokens_that_they_computed():
    tally = PaddingTally()
    tally.add(30, 0.5)
    tally.add(20, 1.0)
    assert tally.take() == {METRIC: pytest.approx(50 / 80)}
    assert tally.take() == {}
