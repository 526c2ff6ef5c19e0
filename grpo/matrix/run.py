"""From a run directory on disk to a verdict."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo.errors import MatrixError, TelemetryError
from grpo.matrix.judge import Evidence, JobOutcome, Verdict, evidence_of, judge_run
from grpo.matrix.load import Matrix
from grpo.matrix.resolve import resolve_case
from grpo.matrix.schema import Case
from grpo.telemetry.reader import read_run

RESULT = "result.json"


class JobResult(BaseModel):
    """`result.json`: what the job script says of itself. It is written last, whole or not at all."""

    model_config = ConfigDict(extra="ignore", strict=True)

    schema_version: Literal[1]
    case: str
    stage: Annotated[str, Field(pattern="^(setup|trainer|done)$")]
    exit_code: int | None
    stopped_by: str | None = None


def read_result(job_directory: Path) -> JobResult | None:
    """The result file of a job; None where it wrote none. Raises MatrixError for one that cannot be read."""
    path = job_directory / RESULT
    if not path.is_file():
        return None
    try:
        return JobResult.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise MatrixError(f"{path}: not a result file of a job ({error})") from error


def judge_directory(
    matrix: Matrix, case: Case, partition: str, run_directory: Path, job: JobOutcome | None = None
) -> Verdict:
    """Judge what lies on disk. A failed job need not have left a run directory; a run without a job must have one."""
    try:
        evidence = evidence_of(read_run(run_directory), job)
    except TelemetryError:
        if job is None:
            raise
        evidence = Evidence(metrics=(), state="not started", job=job)
    return judge_run(
        evidence,
        case,
        matrix.reference(partition, case.id),
        partition_name=partition,
        partition=matrix.partition(partition),
        expected_config=resolve_case(case).config.model_dump(mode="json"),
    )
