"""The bound of asynchronous training."""

import pytest

from benchmarks.overlap import Overlap


@pytest.mark.parametrize(("generation", "training", "bound"), [(3.0, 2.0, 3.0), (1.0, 2.0, 2.0)])
def test_the_bound_is_the_slower_of_engine_and_policy(generation, training, bound):
    found = Overlap(generation, training, asynchronous=4.0, synchronous=5.0, parts={})
    assert (found.bound, found.reached) == (bound, bound / 4)
    assert "asynchronous is 1.25x as fast" in found.lines()[-1]
    assert len(Overlap(1.0, 1.0, 2.0, None, {}).lines()) == 2
