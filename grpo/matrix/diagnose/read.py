"""A run directory, or a bare row with its case, as what is diagnosed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from grpo.errors import MatrixError
from grpo.matrix.diagnose.diagnose import Observed
from grpo.matrix.judge.comparable import check_config
from grpo.matrix.judge.decide import figures
from grpo.matrix.judge.evidence import Evidence, evidence_of, row_of
from grpo.matrix.judge.machine import Machine, check_canary
from grpo.matrix.judge.ranks import slowest_ranks
from grpo.matrix.judge.steps import select
from grpo.matrix.load import Matrix
from grpo.matrix.resolve import resolve_case
from grpo.matrix.run import VERDICT, judged_as
from grpo.matrix.schema import Case, Reference
from grpo.telemetry.reader import read_run

_WARMUP = 5


@dataclass(frozen=True)
class Subject:
    """One thing to diagnose."""

    seen: Observed
    reference: Reference | None
    machine: Machine


def of_row(matrix: Matrix, partition: str, case_id: str, row: str) -> Subject:
    """A row of a table, with the settings of its case."""
    case = matrix.case(case_id)
    config = resolve_case(case).config.model_dump(mode="json")
    reference = matrix.reference(partition, case_id)
    matrix.partition(partition)
    unknown = f"a row says nothing of the nodes: `grpo canary --partition {partition}` on them does"
    return Subject(Observed(case_id, row_of(row), config), reference, Machine("unknown", (unknown,)))


def of_run(matrix: Matrix, partition: str, case_id: str, directory: Path) -> Subject:
    """A run with its own settings; its case is the named one, the judged one, or the one that it trained.

    Raises MatrixError where no step is left to look at.
    """
    evidence = evidence_of(read_run(directory))
    case = matrix.case(case_id) if case_id else _case_of(matrix, partition, directory, evidence)
    chosen = select(evidence.metrics, evidence.resume_steps, _WARMUP if case is None else case.warmup_steps)
    records = chosen.judged or chosen.warmup
    if not records:
        raise MatrixError(f"{directory} has no steps to diagnose")
    seen = Observed(
        str(directory),
        figures(records),
        evidence.config,
        _medians(records),
        slowest_ranks(evidence.ranks, {record["step"] for record in records}),
    )
    reference = None if case is None else matrix.reference(partition, case.id)
    return Subject(seen, reference, check_canary(evidence.canary, matrix.partition(partition)))


def _case_of(matrix: Matrix, partition: str, directory: Path, evidence: Evidence) -> Case | None:
    if (directory / VERDICT).is_file():
        return matrix.case(judged_as(directory)[0])
    of_partition = [case for case in matrix.cases.values() if partition in case.partitions]
    return next((case for case in of_partition if _trained(case, evidence.config)), None)


def _trained(case: Case, config: Mapping[str, Any]) -> bool:
    if config.get("policy", {}).get("model_name") is None:
        return False
    return not check_config(resolve_case(case).config.model_dump(mode="json"), config)


def _medians(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found = {}
    for metric in dict.fromkeys(name for record in records for name in record):
        values = [record[metric] for record in records if record.get(metric) is not None]
        if values:
            found[metric] = median(values)
    return found
