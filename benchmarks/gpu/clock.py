"""Seconds of two things in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

Work = Callable[[], object]


def synchronise(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(work: Work, device: str) -> float:
    """Of one call, from an idle device to an idle device."""
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - started


def alternately(
    sides: Mapping[str, Work],
    *,
    rounds: int,
    device: str,
    warm_up: int = 2,
    deadline: float = float("inf"),
    agreed: Callable[[bool], bool] = bool,
) -> dict[str, list[float]]:
    """Seconds of each side in each round, the sides in turn; `time.monotonic()` past `deadline` ends it early.

    At least one round is taken, whatever the time. Over ranks `agreed` says whether all of them have time left.
    """
    for _ in range(warm_up):
        for work in sides.values():
            work()
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        if number and not agreed(time.monotonic() <= deadline):
            break
        for name, work in sides.items():
            found[name].append(seconds(work, device))
    return found
