"""Whether a run replayed the lengths that its case declares (rule 12)."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from grpo.matrix.judge.evidence import TOKENS
from grpo.matrix.judge.verdict import Finding
from grpo.matrix.judge.words import number, per_cent
from grpo.matrix.schema import Lengths

# A step's few hundred completions are a part of the recorded ones: its mean and its tail scatter a little.
_TOLERANCE = {TOKENS: 0.02, "rollout/completion_length_p95": 0.05, "rollout/completion_length_max": 0.10}

Record = Mapping[str, Any]


def check_lengths(lengths: Lengths | None, judged: Sequence[Record]) -> list[Finding]:
    """A run of other lengths is another workload: its figures are not held against the reference."""
    if lengths is None:
        return []
    declared = dict(zip(_TOLERANCE, (lengths.mean, lengths.p95, lengths.longest), strict=True))
    findings = []
    for metric, wanted in declared.items():
        values = [record[metric] for record in judged if record.get(metric) is not None]
        found = median(values) if values else None
        if found is not None and not abs(found / wanted - 1) <= _TOLERANCE[metric]:
            message = (
                f"{metric} = {number(found)}, and the case replays {number(wanted)} ({per_cent(found / wanted - 1)}, "
                f"beyond {100 * _TOLERANCE[metric]:.0f} %): lengths were not replayed"
            )
            findings.append(Finding(12, metric, message, None))
    return findings
