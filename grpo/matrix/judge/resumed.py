"""Whether an interrupted run went on where it was: steps that were trained twice must be the same both times."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo.matrix.judge.verdict import Finding
from grpo.matrix.judge.words import number, per_cent
from grpo.matrix.schema import Interruption

Record = Mapping[str, Any]


def check_resumed(
    interrupted: Interruption | None, metrics: Sequence[Record], discarded: Sequence[Record], resumed: Sequence[int]
) -> list[Finding]:
    """`discarded`: lines of steps that a resume threw away; `resumed`: the last step before each resume.

    A kill between two checkpoints leaves steps that are trained again. They saw the same prompts, weights and random
    numbers if, and only if, all of that came back from the checkpoint.
    """
    if interrupted is None:
        return []
    if not resumed:
        return [_failure("resume", f"the run was to be killed after step {interrupted.after_step}, and never resumed")]
    if resumed[0] > interrupted.after_step or resumed[0] < 1:
        message = f"the run was killed after step {interrupted.after_step}, and resumed after step {resumed[0]}"
        return [_failure("resume", message)]
    again = {record["step"]: record for record in metrics}
    twice = [(record, again[record["step"]]) for record in discarded if record.get("step") in again]
    if not twice:
        return [_failure("resume", "no step was trained twice: nothing says that the run went on where it was")]
    return [finding for metric, most in interrupted.equal.items() for finding in _differences(metric, most, twice)]


def _differences(metric: str, most: float, twice: Sequence[tuple[Record, Record]]) -> Iterable[Finding]:
    for before, after in twice:
        first, second = before.get(metric), after.get(metric)
        if first is None or second is None:
            yield _failure(metric, f"{metric} is missing in step {before['step']}, which was trained twice")
        elif not abs(second - first) <= most * abs(first):
            change = f" ({per_cent(second / first - 1)})" if first else ""
            yield _failure(
                metric,
                f"{metric} of step {before['step']} was {number(first)} before the kill and is {number(second)} "
                f"after it{change}, beyond {100 * most:g} %",
            )


def _failure(subject: str, message: str) -> Finding:
    return Finding(9, subject, message, "correctness")
