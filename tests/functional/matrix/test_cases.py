"""The cases of the functional layer that train: the whole chain from the command line to the verdict."""

import subprocess
import sys
from pathlib import Path

import pytest

from grpo.matrix.load import load_matrix
from grpo.matrix.resolve import overrides_of
from grpo.matrix.run import judge_directory
from grpo.matrix.schema.types import seconds_of

MATRIX = load_matrix(Path(__file__).parents[3] / "matrices")
CASES = [
    pytest.param(
        case,
        id=case.id,
        marks=[pytest.mark.timeout(seconds_of(case.time_limit) + 30)]
        + ([] if case.cadence == "pr" else [pytest.mark.nightly]),
    )
    for case in MATRIX.cases.values()
    if case.layer == "functional"
]


@pytest.mark.parametrize("case", CASES)
def test_a_case_trains_and_passes(case, tmp_path):
    (partition,) = case.partitions
    run = tmp_path / "run"
    arguments = ["train", case.recipe, *overrides_of(case), f"logger.log_dir={run}", "--quiet"]
    subprocess.run([sys.executable, "-m", "grpo", *arguments], check=True, timeout=seconds_of(case.time_limit))
    verdict = judge_directory(MATRIX, case, partition, run)
    assert verdict.outcome == "pass", verdict.sentence
