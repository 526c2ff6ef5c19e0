"""A job of the matrix must pass its judge. "Not judged" is not a pass."""

import json

import pytest
from rich.console import Console

from grpo.matrix.show.table import verdict_table
from grpo.matrix.slurm.cases import verdict_of

# The plugin has deadlines for every wait.
pytestmark = pytest.mark.timeout(0)


def test_case(slurm_case, matrix, partition, record_property):
    outcome = slurm_case.wait()
    verdict = verdict_of(matrix, matrix.case(slurm_case.id), partition, outcome)
    record_property("verdict", verdict.sentence)
    if outcome.jobs:  # an earlier run is left as it is
        (outcome.folder / "verdict.json").write_text(json.dumps(verdict.to_json(), indent=2) + "\n")
    Console(width=120, highlight=False, markup=False).print(verdict_table(verdict))
    if verdict.outcome not in {"pass", "faster"}:
        end = f"\n{outcome.folder}/job.log ends:\n{outcome.tail()}" if verdict.failure in {"crash", "infra"} else ""
        pytest.fail(f"{verdict.sentence}\n{outcome.sentence}{end}", pytrace=False)
