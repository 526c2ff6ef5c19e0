"""Which steps of a run are judged (rule 1)."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from grpo.matrix.judge.evidence import TOTAL
from grpo.matrix.judge.verdict import Finding, Steps

LEAST_STEPS = 20
_APART = ("timing/checkpoint", "timing/validation")

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Selection:
    """The training steps of a run, by use."""

    training: list[Record]  # all of them
    judged: list[Record]
    warmup: list[Record]
    apart: list[Record]

    def summary(self) -> Steps:
        seconds = [record[TOTAL] for record in self.apart if record.get(TOTAL) is not None]
        return Steps(len(self.judged), len(self.warmup), len(self.apart), median(seconds) if seconds else None)


def select(metrics: Sequence[Record], resume_steps: Sequence[int], warmup_steps: int) -> Selection:
    """Leave out the warm-up at the start and after every resume, and set apart checkpoint and validation steps.

    A validation's refit serves the step after it, which therefore has none of its own and is set apart too. A line
    before step 1 is a validation of the untrained policy.
    """
    training = [record for record in metrics if record["step"] >= 1]
    starts = sorted({1, *(step + 1 for step in resume_steps)})
    judged, warmup, apart = [], [], []
    after_validation = False
    for record in training:
        step = record["step"]
        start = starts[bisect_left(starts, step + 1) - 1]
        if step - start < warmup_steps:
            warmup.append(record)
        elif after_validation or any((record.get(name) or 0) > 0 for name in _APART):
            apart.append(record)
        else:
            judged.append(record)
        after_validation = (record.get("timing/validation") or 0) > 0
    return Selection(training, judged, warmup, apart)


def check_steps(selection: Selection, *, steps: int, least: int) -> list[Finding]:
    """Whether the run has all its steps, each once, and enough of them are judged."""
    findings = []
    numbers = [record["step"] for record in selection.training]
    there = set(numbers)
    absent = steps - sum(number <= steps for number in there)
    if absent:
        missing = next(number for number in range(1, steps + 1) if number not in there)
        first = f"step {missing}" if absent == 1 else f"{absent} steps, the first of them {missing}"
        findings.append(Finding(5, "steps", f"the case has {steps} steps, and the run lacks {first}", "correctness"))
    if numbers and max(numbers) > steps:
        message = f"the case has {steps} steps, and the run goes on to step {max(numbers)}"
        findings.append(Finding(5, "steps", message, "correctness"))
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        findings.append(Finding(5, "steps", "steps do not ascend", "correctness"))
    if len(selection.judged) < least:
        findings.append(
            Finding(
                1,
                "steps",
                f"{len(selection.judged)} steps to judge, and {least} are needed (not counted: "
                f"{len(selection.warmup)} of warm-up, {len(selection.apart)} with a checkpoint or validation)",
                "correctness",
            )
        )
    return findings
