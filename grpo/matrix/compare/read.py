"""Run directories as sides of a comparison."""

from pathlib import Path

from grpo.errors import MatrixError
from grpo.matrix.compare.abba import TurnRun
from grpo.matrix.compare.matched import Side
from grpo.matrix.judge.decide import figures
from grpo.matrix.judge.evidence import TOTAL, Evidence, evidence_of
from grpo.matrix.judge.steps import select
from grpo.telemetry.reader import read_run


def side_of(path: Path, *, warmup_steps: int) -> Side:
    """The steps of a run after its warm-up, without those of checkpoints and validations. Raises MatrixError."""
    evidence, judged = _judged(path, warmup_steps)
    outside = None
    if evidence.seconds is not None and not evidence.resume_steps:
        outside = evidence.seconds - sum(record.get(TOTAL) or 0.0 for record in evidence.metrics)
    return Side(str(path), judged, outside)


def turn_of(path: Path, *, warmup_steps: int) -> TurnRun:
    """A run of a sequence of old and new. Raises MatrixError."""
    evidence, judged = _judged(path, warmup_steps)
    return TurnRun(str(path), figures(judged), evidence.started, evidence.hosts)


def _judged(path: Path, warmup_steps: int) -> tuple[Evidence, list[dict[str, float]]]:
    evidence = evidence_of(read_run(path))
    judged = select(evidence.metrics, evidence.resume_steps, warmup_steps).judged
    if not judged:
        raise MatrixError(
            f"{path}: of {len(evidence.metrics)} steps none is left after {warmup_steps} of warm-up and without "
            "checkpoints and validations"
        )
    return evidence, [dict(record) for record in judged]
