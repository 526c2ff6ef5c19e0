"""The judge: a pure function of what a run directory holds, the case and the reference."""

from grpo.matrix.judge.decide import judge_row, judge_run
from grpo.matrix.judge.evidence import Evidence, evidence_of, row_of
from grpo.matrix.judge.failure import JobOutcome
from grpo.matrix.judge.several import judge_runs
from grpo.matrix.judge.verdict import Rerun, Verdict

__all__ = [
    "Evidence",
    "JobOutcome",
    "Rerun",
    "Verdict",
    "evidence_of",
    "judge_row",
    "judge_run",
    "judge_runs",
    "row_of",
]
