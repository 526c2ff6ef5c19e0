"""Which checkpoints may go."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpo.checkpoint.reading import CheckpointInfo


def superfluous(
    checkpoints: Sequence[CheckpointInfo],
    *,
    keep_latest: int,
    keep_top_k: int,
    metric_name: str,
    higher_is_better: bool,
    keep_every_n_steps: int | None = None,
) -> list[CheckpointInfo]:
    """The checkpoints that are neither among the latest saved, nor the best by the metric, nor pinned, oldest first.

    Nor are those of a step that is a multiple of `keep_every_n_steps`, which are kept for good.
    Of equal metrics the newer counts as better; absent or non-finite ones are never among the best.
    Damaged ones do not count and are not given: what is left of them may still be of use.
    """
    sound = sorted((info for info in checkpoints if info.problem is None), key=lambda info: info.sequence)
    rated = [info for info in sound if math.isfinite(info.metrics.get(metric_name, math.nan))]
    sign = 1 if higher_is_better else -1
    best = sorted(rated, key=lambda info: (sign * info.metrics[metric_name], info.sequence), reverse=True)
    kept = {info.path for info in [*sound[max(len(sound) - keep_latest, 0) :], *best[:keep_top_k]]}
    if keep_every_n_steps is not None:
        kept |= {info.path for info in sound if info.step % keep_every_n_steps == 0}
    return [info for info in sound if info.path not in kept and not info.pinned]
