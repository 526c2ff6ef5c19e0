import shutil

import pytest

from grpo.errors import MatrixError
from grpo.matrix.diagnose.read import of_row, of_run
from grpo.matrix.load import load_matrix
from grpo.matrix.run import judge_directory
from tests.support.case_runs import case_run, small_matrix


@pytest.fixture
def matrix(tmp_path):
    return load_matrix(small_matrix(tmp_path / "matrices"))


def test_a_run_is_told_by_what_it_trained(matrix, tmp_path):
    directory = case_run(matrix, tmp_path / "run")
    subject = of_run(matrix, "cpu-local", "", directory)
    assert subject.reference is matrix.reference("cpu-local", "small")
    assert subject.seen.config["policy"]["model_name"] == "tiny-digits"
    assert subject.seen.metrics["train/padding_efficiency"] == 1.0
    (directory / "config.yaml").write_text("policy: {model_name: another}\n")
    assert of_run(matrix, "cpu-local", "", directory).reference is None
    assert of_run(matrix, "cpu-local", "small", directory).reference is not None


def test_a_judged_run_is_of_the_case_that_judged_it(matrix, tmp_path):
    directory = case_run(matrix, tmp_path / "run")
    judge_directory(matrix, matrix.case("small"), "cpu-local", directory)
    (directory / "config.yaml").unlink()
    assert of_run(matrix, "cpu-local", "", directory).reference is not None


def test_a_run_too_short_for_a_warm_up_is_diagnosed_all_the_same(matrix, tmp_path):
    directory = case_run(matrix, tmp_path / "run")
    lines = (directory / "metrics.jsonl").read_text().splitlines(keepends=True)
    (directory / "metrics.jsonl").write_text("".join(lines[:3]))
    assert of_run(matrix, "cpu-local", "", directory).seen.values["timing/total"] == 147.0
    (directory / "metrics.jsonl").write_text("")
    with pytest.raises(MatrixError, match="no steps"):
        of_run(matrix, "cpu-local", "", directory)
    shutil.rmtree(directory)


def test_a_row_has_the_settings_of_its_case_and_says_nothing_of_the_machine(matrix):
    subject = of_row(matrix, "cpu-local", "small", "total=3,refit=1")
    assert subject.seen.config["checkpointing"]["enabled"] is False
    assert subject.machine.health == "unknown"
    assert "grpo canary --partition cpu-local" in subject.machine.problems[0]
