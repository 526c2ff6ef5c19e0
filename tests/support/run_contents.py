"""What two runs must have in common to be the same run."""

import json
from pathlib import Path

import torch
from torch import Tensor

from grpo.checkpoint.reading import list_checkpoints, open_checkpoint

WALL_CLOCK = ("timing/", "performance/", "memory/")


def metrics_of(directory: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl without what a clock or the process's size decides."""
    return [
        {name: value for name, value in line.items() if not name.startswith(WALL_CLOCK)}
        for line in map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    ]


def state_of(directory: Path, step: int) -> dict[str, Tensor]:
    """Every tensor of a step's checkpoint: weights, optimizer, random states."""
    (path,) = [info.path for info in list_checkpoints(directory / "checkpoints") if info.step == step]
    with open_checkpoint(path, None) as opened:
        return {name: opened.tensors[name][...] for name in opened.tensors}


def assert_same_run(directory: Path, other: Path, step: int) -> None:
    """To the bit, metrics and the state after the last step."""
    assert metrics_of(directory) == metrics_of(other)
    mine, its = state_of(directory, step), state_of(other, step)
    assert mine.keys() == its.keys()
    different = [name for name in mine if not torch.equal(mine[name], its[name])]
    assert not different, different
