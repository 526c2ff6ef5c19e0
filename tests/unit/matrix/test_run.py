import json
from pathlib import Path

import pytest

from grpo.checkpoint.signals import StopRequest
from grpo.config import load_config
from grpo.errors import MatrixError, TelemetryError
from grpo.matrix.judge import JobOutcome
from grpo.matrix.load import load_matrix
from grpo.matrix.resolve import overrides_of
from grpo.matrix.run import judge_directory, read_result
from grpo.trainer.run import train

MATRIX = load_matrix(Path(__file__).parents[3] / "matrices")


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    """A real run of a case of the matrix."""
    folder = tmp_path_factory.mktemp("case") / "run"
    case = MATRIX.case("tiny-objective-clipped-grpo")
    resolved = load_config(case.recipe, [*overrides_of(case), f"logger.log_dir={folder}"])
    with StopRequest() as stop:
        train(resolved, fresh=False, quiet=True, command=["grpo", "train"], stop=stop)
    return case, folder


def test_a_real_run_of_a_case_passes_and_is_that_of_no_other(tiny_run):
    case, folder = tiny_run
    verdict = judge_directory(MATRIX, case, "cpu-local", folder)
    assert verdict.outcome == "pass", verdict.sentence
    assert len(verdict.bounds) == len(case.checks.bounds)
    other = judge_directory(MATRIX, MATRIX.case("tiny-objective-cispo-grpo"), "cpu-local", folder)
    assert other.outcome == "not judged"
    assert "loss_fn.kind = 'clipped', and the case says 'cispo'" in other.sentence


def test_a_job_that_failed_is_judged_by_its_end(tiny_run, tmp_path):
    case, folder = tiny_run
    job = JobOutcome("FAILED", exit_code=1, stage="trainer")
    assert judge_directory(MATRIX, case, "cpu-local", folder, job).failure == "crash"
    assert judge_directory(MATRIX, case, "cpu-local", tmp_path / "none", job).failure == "crash"
    with pytest.raises(TelemetryError, match="no run directory"):
        judge_directory(MATRIX, case, "cpu-local", tmp_path / "none")


def test_result_files(tmp_path):
    assert read_result(tmp_path) is None
    good = {"schema_version": 1, "case": "c", "stage": "done", "exit_code": 0, "stopped_by": None}
    (tmp_path / "result.json").write_text(json.dumps(good))
    assert read_result(tmp_path).stage == "done"
    for bad in ("{", "[]", json.dumps({**good, "schema_version": 2}), json.dumps({**good, "stage": "elsewhere"})):
        (tmp_path / "result.json").write_text(bad)
        with pytest.raises(MatrixError, match="not a result file"):
            read_result(tmp_path)
