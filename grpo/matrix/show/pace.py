"""The step of a run against a reference while it trains, in the words of `grpo status`."""

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.errors import MatrixError
from grpo.matrix.judge.evidence import TOTAL
from grpo.matrix.load import read_reference
from grpo.matrix.schema import Reference
from grpo.matrix.show.status import step_words
from grpo.matrix.status import WARMUP_STEPS, step_view

_KEPT = 200  # steps


class Pace:
    """Takes the metrics of each step; the median is of the last 200 after the warm-up."""

    def __init__(self, reference: Reference, warmup_steps: int = WARMUP_STEPS) -> None:
        self._reference = reference
        self._warmup = warmup_steps
        self._first: int | None = None
        self._records: collections.deque[Mapping[str, Any]] = collections.deque(maxlen=_KEPT)

    def add(self, step: int, values: Mapping[str, float | None]) -> None:
        """Of a finished step, named as in metrics.jsonl."""
        self._first = step if self._first is None else self._first
        timing = {name: value for name, value in values.items() if name.startswith("timing/") and value is not None}
        self._records.append({"step": step, **timing})

    def words(self) -> str:
        """`178 s (147, +21 %): refit +12, ...`; "" before the first step."""
        resumed = [] if self._first is None else [self._first - 1]
        view = step_view(list(self._records), resumed, self._warmup, self._reference)
        return "" if view is None else step_words(view)


def read_pace(path: Path, warmup_steps: int = WARMUP_STEPS) -> Pace:
    """Raises MatrixError for a file that is no reference, or has no total."""
    if not path.is_file():
        raise MatrixError(f"--reference {path}: there is no such file")
    reference = read_reference(path)
    if TOTAL not in reference.values:
        raise MatrixError(f"--reference {path}: it has no {TOTAL}, so no step can be held against it")
    return Pace(reference, warmup_steps)
