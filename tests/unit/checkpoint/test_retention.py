import math
from pathlib import Path

import pytest

from grpo.checkpoint.reading import CheckpointInfo
from grpo.checkpoint.retention import superfluous


def infos(*metrics, pinned=(), damaged=()):
    return [
        CheckpointInfo(
            path=Path(f"step_{step}"),
            step=step,
            sequence=step,
            bytes=1,
            metrics={} if metric is None else {"m": metric, "other": -metric},
            pinned=step in pinned,
            problem="truncated" if step in damaged else None,
        )
        for step, metric in enumerate(metrics)
    ]


def removed(checkpoints, latest, top, metric_name="m", higher_is_better=True):
    gone = superfluous(
        checkpoints, keep_latest=latest, keep_top_k=top, metric_name=metric_name, higher_is_better=higher_is_better
    )
    return [info.step for info in gone]


@pytest.mark.parametrize(
    ("checkpoints", "latest", "top", "gone"),
    [
        (infos(), 1, 1, []),
        (infos(1.0), 1, 0, []),
        (infos(1.0, 2.0, 3.0), 5, 0, []),
        (infos(1.0, 2.0, 3.0), 1, 0, [0, 1]),
        (infos(9.0, 2.0, 3.0), 1, 1, [1]),
        (infos(9.0, 2.0, 3.0), 1, 2, [1]),  # the latest may be among the best: the union is kept
        (infos(5.0, 5.0, 5.0, 1.0), 1, 1, [0, 1]),  # ties to the newer
        (infos(5.0, None, 1.0, 0.0), 1, 1, [1, 2]),  # without the metric: never among the best
        (infos(math.nan, math.inf, -1.0, 0.0), 1, 1, [0, 1, 2]),
        (infos(None, None, None), 1, 3, [0, 1]),
        (infos(1.0, 2.0, 3.0, pinned=[0]), 1, 0, [1]),
        (infos(1.0, 2.0, 3.0, pinned=[2]), 1, 0, [0, 1]),  # a pinned one still counts as the latest
        (infos(9.0, 2.0, 3.0, damaged=[0, 2]), 1, 1, []),
    ],
)
def test_what_goes(checkpoints, latest, top, gone):
    assert removed(checkpoints, latest, top) == gone
    assert removed(checkpoints[::-1], latest, top) == gone


def test_lower_may_be_better_and_ties_still_go_to_the_newer():
    checkpoints = infos(1.0, 3.0, 1.0, 2.0, 5.0)
    assert removed(checkpoints, 1, 1, higher_is_better=False) == [0, 1, 3]
    assert removed(checkpoints, 1, 1, metric_name="other") == [0, 1, 3]
    assert removed(checkpoints, 1, 2, metric_name="absent") == [0, 1, 2, 3]


def test_every_n_steps_one_is_kept_for_good():
    checkpoints = infos(5.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0)
    gone = superfluous(
        checkpoints, keep_latest=1, keep_top_k=1, metric_name="m", higher_is_better=True, keep_every_n_steps=3
    )
    assert [info.step for info in gone] == [1, 2, 4, 5]
