"""The learning rate as a pure function of the number of updates done."""

from __future__ import annotations

import math
from typing import Literal

Decay = Literal["constant", "linear", "cosine"]


def learning_rate_factor(
    update: int, *, warmup_steps: int, decay: Decay, decay_steps: int | None, min_ratio: float
) -> float:
    """What the peak learning rate is multiplied by in the update after `update` finished ones.

    Linear warm-up: 1/warmup_steps in the first update, 1 in update number `warmup_steps`. Then over `decay_steps`
    updates down to `min_ratio`, linearly or as a half cosine, and constant from there.
    """
    if update < warmup_steps:
        return (update + 1) / warmup_steps
    if decay == "constant":
        return 1.0
    if decay_steps is None:
        raise ValueError(f"decay {decay!r} needs decay_steps")
    progress = min(1.0, (update - warmup_steps) / decay_steps)
    remaining = 1.0 - progress if decay == "linear" else (1.0 + math.cos(math.pi * progress)) / 2.0
    return min_ratio + (1.0 - min_ratio) * remaining
