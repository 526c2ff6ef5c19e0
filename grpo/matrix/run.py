"""From a run directory on disk to a verdict."""

import datetime as dt
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo.errors import MatrixError, TelemetryError
from grpo.matrix.accept.merge import JudgedRun, merge
from grpo.matrix.accept.write import reference_yaml
from grpo.matrix.judge import Evidence, JobOutcome, Verdict, evidence_of, judge_run, judge_runs
from grpo.matrix.load import Matrix
from grpo.matrix.resolve import resolve_case
from grpo.matrix.schema import Case
from grpo.telemetry.journal import replace_json, replace_text
from grpo.telemetry.reader import read_run

RESULT = "result.json"
CANARY = "canary.json"
BENCHMARK = Path("benchmark", "results.jsonl")  # in the job's folder, beside the run directory
VERDICT = "verdict.json"
READY = "reference.yaml"


class JudgedAs(BaseModel):
    """What is read back of `verdict.json`: never its outcome."""

    model_config = ConfigDict(extra="ignore", strict=True)

    schema_version: Literal[1]
    case: str
    partition: str


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
    """Judge one run on disk. A failed job need not have left a run directory; a run without a job must have one."""
    return judge_directories(matrix, case, partition, [(run_directory, job)])


def judge_directories(
    matrix: Matrix,
    case: Case,
    partition: str,
    runs: Sequence[tuple[Path, JobOutcome | None]],
    *,
    gpu_hours_left: float | None = None,
) -> Verdict:
    """Judge a run and its reruns together. Each directory gets `verdict.json`, and of a single run `reference.yaml`.

    What an earlier judgement wrote is never read.
    """
    evidences = [_evidence(path, job, case) for path, job in runs]
    verdict = judge_runs(
        evidences,
        case,
        matrix.reference(partition, case.id),
        partition_name=partition,
        partition=matrix.partition(partition),
        expected_config=resolve_case(case).config.model_dump(mode="json"),
        gpu_hours_left=gpu_hours_left,
    )
    for (path, _), evidence in zip(runs, evidences, strict=True):
        if evidence.run is not None:
            record(verdict, evidence, case, path)
    return verdict


def judged_run(matrix: Matrix, case: Case, partition: str, path: Path) -> JudgedRun:
    """One run by itself, for a reference. Raises TelemetryError where there is none."""
    evidence = _evidence(path, None, case)
    verdict = judge_run(
        evidence,
        case,
        matrix.reference(partition, case.id),
        partition_name=partition,
        partition=matrix.partition(partition),
        expected_config=resolve_case(case).config.model_dump(mode="json"),
    )
    return JudgedRun(str(path), evidence, verdict)


def _evidence(path: Path, job: JobOutcome | None, case: Case) -> Evidence:
    if not case.trains:
        return _canary_evidence(path.parent / CANARY, job)
    try:
        evidence = evidence_of(read_run(path), job)
        return replace(evidence, benchmark=_records(path.parent / BENCHMARK)) if case.benchmark else evidence
    except TelemetryError:
        if job is None:
            raise
        return Evidence(metrics=(), state="not started", job=job)


def _records(path: Path) -> list[dict[str, Any]]:
    """A benchmark's: an object a line, of no version; [] where it left none."""
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise MatrixError(f"{path}: not the records of a benchmark ({error})") from error
    return [record for record in records if isinstance(record, dict)]


def _canary_evidence(path: Path, job: JobOutcome | None) -> Evidence:
    try:
        canary = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Evidence(metrics=(), state="not started", job=job)
    except (OSError, ValueError) as error:
        raise MatrixError(f"{path}: not a canary ({error})") from error
    return Evidence(metrics=(), state="completed", job=job, canary=canary, nodes=canary.get("nodes", []))


def record(verdict: Verdict, evidence: Evidence, case: Case, directory: Path) -> None:
    """Write `verdict.json`, and `reference.yaml` for a case with figures, into a run directory that can be written."""
    if not os.access(directory, os.W_OK):
        return
    replace_json(directory / VERDICT, verdict.to_json())
    figures = verdict.values if len(verdict.runs) == 1 else {}
    if not case.checks.against_reference or not set(case.checks.against_reference) <= set(figures):
        return
    run = JudgedRun(str(directory), evidence, verdict)
    ready = merge([run], case, today=dt.datetime.fromtimestamp(evidence.started or 0.0, tz=dt.UTC).date())
    comment = (
        f"{case.id} on {verdict.partition}, by this run alone: it informs, and gates nothing.\n"
        f"{accept_command([directory])}  # with two more runs of it, or four"
    )
    replace_text(directory / READY, reference_yaml(ready, comment=comment))


def accept_command(directories: Sequence[Path]) -> str:
    """The one command that makes these runs the reference."""
    return f"nox -s accept -- {' '.join(shlex.quote(str(path)) for path in directories)}"


def judged_as(directory: Path) -> tuple[str, str]:
    """Case and partition that a run was judged by. Raises MatrixError where it was not judged."""
    path = directory / VERDICT
    try:
        known = JudgedAs.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise MatrixError(
            f"{directory} was not judged yet: name its case and partition with --case and --partition"
        ) from None
    except (OSError, ValueError) as error:
        raise MatrixError(f"{path}: not a verdict ({error})") from error
    return known.case, known.partition
