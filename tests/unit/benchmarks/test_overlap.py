"""The bound of asynchronous training, and how a run is held while its parts work alone."""

from pathlib import Path

import pytest

from benchmarks import overlap
from benchmarks.overlap import ASYNC, ENDLESS, SYNC, Observed, Overlap, Round
from grpo.config import load_config

RECIPE = Path(overlap.__file__).with_name("overlap.yaml")


@pytest.mark.parametrize(("generation", "training", "bound"), [(3.0, 2.0, 3.0), (1.0, 2.0, 2.0)])
def test_the_bound_is_the_slower_of_engine_and_policy(generation, training, bound):
    found = Round(4.0, generation, training)
    assert found.bound == bound
    assert Overlap([found], None, {}).reached.median == bound / 4


def test_every_round_is_compared_with_its_own_bound():
    rounds = [Round(4.0, 3.0, 2.0), Round(8.0, 6.0, 7.6), Round(40.0, 32.0, 1.0)]  # the last one on a busy machine
    found = Overlap(rounds, 50.0, {})
    assert (found.reached.low, found.reached.median, found.reached.high) == (0.75, 0.8, 0.95)
    assert "bound 7.600 s" in found.lines()[0]
    assert "8.000 s a step: 80.0% of the bound (75.0% to 95.0% in 3 rounds; goal 90%)" in found.lines()[1]
    assert "asynchronous is 6.25x as fast" in found.lines()[2]


class Steps:
    """A loop that tells of a step in the one that follows, as the trainer's does."""

    def __init__(self, observed):
        self.observed, self.step = observed, 0

    def run(self, stop):
        held = False
        while stop.requested is None:
            if held:
                self.observed(self.step, {"timing/total": float(self.step)})
            self.step, held = self.step + 1, True
        self.observed(self.step, {"timing/total": float(self.step)})


def test_a_run_goes_on_where_it_was_held():
    observed = Observed()
    trainer = Steps(observed)
    for first, count in ((1, 5), (6, 2), (8, 4)):
        rows = observed.train(trainer, count)
        assert [row["timing/total"] for row in rows] == list(range(first, first + count))


@pytest.mark.parametrize("way", [ASYNC, SYNC])
def test_the_recipe_is_one_that_runs(way):
    config = load_config(str(RECIPE), [*ENDLESS, *way]).config
    assert config.policy.generation.replay_lengths.shape == 0.7
    assert config.grpo.async_grpo.enabled == (way is ASYNC)
