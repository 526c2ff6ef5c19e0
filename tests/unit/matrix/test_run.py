import json
import shutil
from pathlib import Path

import pytest

from grpo.checkpoint.signals import StopRequest
from grpo.config import load_config
from grpo.errors import MatrixError, TelemetryError
from grpo.matrix.judge import JobOutcome
from grpo.matrix.judge.sanity import REQUIRED
from grpo.matrix.load import load_matrix
from grpo.matrix.resolve import overrides_of
from grpo.matrix.run import judge_directory, judged_as, read_result
from grpo.matrix.schema import Benchmark
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


def test_what_a_benchmark_left_beside_the_run_is_judged_with_it(tiny_run, tmp_path):
    case, folder = tiny_run
    shutil.copytree(folder, tmp_path / "run")
    asks = Benchmark.model_validate({"module": "m", "bounds": {"training.ratio": {"upper": 1.02}}})
    case = case.model_copy(update={"benchmark": asks})
    assert "training.ratio was not measured" in judge_directory(MATRIX, case, "cpu-local", tmp_path / "run").sentence
    results = tmp_path / "benchmark" / "results.jsonl"
    results.parent.mkdir()
    for ratio, outcome in ((1.01, "pass"), (1.05, "fail")):
        results.write_text(json.dumps({"kind": "training", "ratio": ratio}) + "\n")
        verdict = judge_directory(MATRIX, case, "cpu-local", tmp_path / "run")
        assert verdict.outcome == outcome, verdict.sentence


def test_a_case_that_trains_nothing_is_judged_by_the_jobs_canary(tmp_path):
    case = MATRIX.case("tiny-canary")
    done = JobOutcome("COMPLETED", exit_code=0, stage="done")
    assert judge_directory(MATRIX, case, "cpu-local", tmp_path / "run", done).outcome == "fail"
    (tmp_path / "canary.json").write_text(json.dumps({"schema_version": 1, "nodes": [{"host": "a"}], "pairs": []}))
    assert judge_directory(MATRIX, case, "cpu-local", tmp_path / "run", done).outcome == "pass"
    failed = JobOutcome("FAILED", exit_code=None, stage="setup")
    assert judge_directory(MATRIX, case, "cpu-local", tmp_path / "run", failed).failure == "infra"
    (tmp_path / "canary.json").write_text("{")
    with pytest.raises(MatrixError, match="not a canary"):
        judge_directory(MATRIX, case, "cpu-local", tmp_path / "run", done)


def test_a_job_that_failed_is_judged_by_its_end(tiny_run, tmp_path):
    case, folder = tiny_run
    job = JobOutcome("FAILED", exit_code=1, stage="trainer")
    assert judge_directory(MATRIX, case, "cpu-local", folder, job).failure == "crash"
    assert judge_directory(MATRIX, case, "cpu-local", tmp_path / "none", job).failure == "crash"
    with pytest.raises(TelemetryError, match="no run directory"):
        judge_directory(MATRIX, case, "cpu-local", tmp_path / "none")


def test_a_judged_run_holds_its_verdict_and_is_judged_anew_each_time(tiny_run):
    case, folder = tiny_run
    judge_directory(MATRIX, case, "cpu-local", folder)
    written = json.loads((folder / "verdict.json").read_text())
    assert (written["schema_version"], written["case"], written["outcome"]) == (1, case.id, "pass")
    assert written["runs"] == [written["run"]]
    assert not (folder / "reference.yaml").exists()  # the case has no figures to refer to
    assert judged_as(folder) == (case.id, "cpu-local")
    (folder / "verdict.json").write_text(json.dumps({**written, "outcome": "fail"}))
    assert judge_directory(MATRIX, case, "cpu-local", folder).outcome == "pass"


def test_a_rerun_after_a_failure_judges_again(tiny_run, tmp_path):
    case, folder = tiny_run
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert judge_directory(MATRIX, case, "cpu-local", run).outcome == "fail"
    (run / "metrics.jsonl").write_text("".join(lines))
    assert judge_directory(MATRIX, case, "cpu-local", run).outcome == "pass"
    assert json.loads((run / "verdict.json").read_text())["outcome"] == "pass"


def test_every_metric_of_a_run_that_is_taken_away_fails(tiny_run, tmp_path):
    case, folder = tiny_run
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    needed = {*REQUIRED, *case.checks.bounds, *case.checks.present}
    assert needed <= set(lines[0])
    for metric in needed:
        kept = [{name: value for name, value in line.items() if name != metric} for line in lines]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
        assert judge_directory(MATRIX, case, "cpu-local", run).outcome == "fail", metric


def test_what_was_not_judged_has_no_case(tmp_path):
    with pytest.raises(MatrixError, match="was not judged yet"):
        judged_as(tmp_path)
    (tmp_path / "verdict.json").write_text("[]")
    with pytest.raises(MatrixError, match="not a verdict"):
        judged_as(tmp_path)


def test_result_files(tmp_path):
    assert read_result(tmp_path) is None
    good = {"schema_version": 1, "case": "c", "stage": "done", "exit_code": 0, "stopped_by": None}
    (tmp_path / "result.json").write_text(json.dumps(good))
    assert read_result(tmp_path).stage == "done"
    for bad in ("{", "[]", json.dumps({**good, "schema_version": 2}), json.dumps({**good, "stage": "elsewhere"})):
        (tmp_path / "result.json").write_text(bad)
        with pytest.raises(MatrixError, match="not a result file"):
            read_result(tmp_path)
