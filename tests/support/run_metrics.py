"""What runs wrote, compared."""

import json

import pytest

WALL_CLOCK = ("timing/", "performance/", "memory/")


def lines(directory):
    return [json.loads(text) for text in (directory / "metrics.jsonl").read_text().splitlines()]


def metrics_of(directory):
    """Of each step, all that does not depend on the clock or the machine."""
    return [{name: each for name, each in line.items() if not name.startswith(WALL_CLOCK)} for line in lines(directory)]


def compare_runs(ours, theirs):
    """The same run in another layout: each rank has its own micro-batches, and sums are made in another order."""
    for one, other in zip(metrics_of(ours), metrics_of(theirs), strict=True):
        assert one.keys() == other.keys()
        one.pop("train/padding_efficiency", None)
        assert one == pytest.approx({name: other[name] for name in one}, rel=1e-5, abs=1e-6)
