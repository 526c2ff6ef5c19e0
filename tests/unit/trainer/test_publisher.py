from types import SimpleNamespace

import pytest

from grpo.trainer.publisher import Publisher
from grpo.workers.policy.group import RankSeconds


class Written:
    """A run directory and an observer that note what they are given."""

    def __init__(self):
        self.lines = []

    def __getattr__(self, name):
        return lambda *arguments: self.lines.append((name, *arguments))


@pytest.fixture
def run():
    return Written()


def publisher(run, rank_seconds=None):
    return Publisher(SimpleNamespace(run=run, observers=(run.observer,), rank_seconds=rank_seconds))


def test_a_step_is_written_once_with_its_ranks_and_lengths(run):
    seconds = RankSeconds(["a", "b"], {"timing/training": [1.0, 2.0]})
    told = publisher(run, lambda: seconds)
    told.hold_step({"reward": 1.0}, [3, 4])
    assert run.lines == [], "not before it is asked for"
    for _ in range(2):
        told.publish(5)
    assert run.lines == [
        ("write_metrics", 5, {"reward": 1.0}), ("write_ranks", 5, ["a", "b"], seconds.phases),
        ("write_lengths", 5, [3, 4]), ("observer", 5, {"reward": 1.0}),
    ]  # fmt: skip


def test_a_line_without_a_step_has_neither_ranks_nor_lengths_of_the_one_before(run):
    told = publisher(run, lambda: RankSeconds([], {}))
    told.hold_step({"reward": 1.0}, [3])
    told.publish(1)
    run.lines.clear()
    told.hold({"validation": 2.0})
    told.hold({"validation": 3.0})
    told.publish(2)
    assert run.lines == [("write_metrics", 2, {"validation": 3.0}), ("observer", 2, {"validation": 3.0})]
