"""The cases of the functional layer that train: the whole chain from the command line to the verdict."""

from pathlib import Path

import pytest

from grpo.matrix.here import LOG, run_here
from grpo.matrix.load import load_matrix
from grpo.matrix.schema.types import seconds_of

MATRIX = load_matrix(Path(__file__).parents[3] / "matrices")
CASES = [
    pytest.param(
        case,
        id=case.id,
        marks=[pytest.mark.timeout(seconds_of(case.time_limit) + 90)]
        + ([] if case.cadence == "pr" else [pytest.mark.nightly]),
    )
    for case in MATRIX.cases.values()
    if case.layer == "functional"
]


@pytest.mark.parametrize("case", CASES)
def test_a_case_trains_and_passes(case, tmp_path):
    (partition,) = case.partitions
    verdict = run_here(MATRIX, case, partition, tmp_path / "case")
    assert verdict.outcome == "pass", (verdict.sentence, (tmp_path / "case" / LOG).read_text()[-3000:])
