import json
from pathlib import Path

import pytest
from slurm_pytest_plugin import Outcome

from grpo.errors import MatrixError
from grpo.matrix.load import load_matrix
from grpo.matrix.slurm.cases import (
    further_runs,
    gpu_hours_of,
    job_of,
    partition_of,
    progress,
    verdict_of,
)

MATRIX = load_matrix(Path(__file__).parents[4] / "matrices")


def job(case_id, partition, **more):
    return job_of(MATRIX, MATRIX.case(case_id), partition, environ={}, working_directory=Path("/w"), **more)


def test_a_case_as_a_job():
    large = job("70b-megatron", "h100-80g", account="acc")
    assert (large.nodes, large.gpus, large.time_limit, large.account) == (8, 64, "02:15:00", "acc")
    # 147 s a step by the published row, 32 steps, and ten minutes to start.
    assert large.expected == f"{(147 * 32 + 600) // 3600}:{(147 * 32 + 600) // 60 % 60:02d}:{(147 * 32 + 600) % 60:02d}"
    assert (large.max_restarts, large.clean_environment, large.runs_here) == (0, True, None)
    small = job("tiny-70b-dtensor", "cpu-local")
    assert (small.nodes, small.gpus, small.expected, small.runs_here) == (2, 0, None, True)
    # Its bounds hold or do not: no further run would decide otherwise.
    assert (large.max_runs, small.max_runs) == (3, 1)


def test_what_jobs_may_take_together():
    cases = [MATRIX.case(name) for name in ("70b-megatron", "70b-dtensor", "8b-dtensor", "tiny-hf")]
    budget = MATRIX.budgets.gpu_hours
    assert gpu_hours_of(MATRIX, cases) == budget.release + budget.weekly + budget.pr
    assert gpu_hours_of(MATRIX, cases[:2]) == budget.release


def test_a_run_that_cannot_be_judged_asks_for_no_other(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{")
    more = further_runs(MATRIX, MATRIX.case("tiny-hf"), "cpu-local")
    assert more([outcome(tmp_path)]) is None


def test_a_machine_at_fault_asks_for_a_retry(tmp_path):
    lost = outcome(tmp_path, executor="slurm", state="NODE_FAIL", jobs=("1",), failure="infra")
    asked = further_runs(MATRIX, MATRIX.case("tiny-hf"), "cpu-local")([lost])
    assert (asked.infra, asked.elsewhere) == (True, False)


def test_where_a_case_runs():
    assert partition_of(MATRIX, MATRIX.case("tiny-hf"), None) == "cpu-local"
    assert partition_of(MATRIX, MATRIX.case("8b-dtensor"), "h200-141g") == "h200-141g"
    with pytest.raises(MatrixError, match="8b-dtensor is for h100-80g, h200-141g: choose one"):
        partition_of(MATRIX, MATRIX.case("8b-dtensor"), None)
    with pytest.raises(MatrixError, match="no partition 'h100'"):
        partition_of(MATRIX, MATRIX.case("8b-dtensor"), "h100")
    with pytest.raises(MatrixError, match="not for the partition h200-141g"):
        job("70b-megatron", "h200-141g")


def test_how_far_a_run_is(tmp_path):
    assert progress(tmp_path) == ""


def outcome(folder, **changes):
    fields = {
        "case": "tiny-hf", "executor": None, "state": None, "result": None, "failure": None, "folder": folder,
    }  # fmt: skip
    return Outcome(**{**fields, **changes})


def test_a_run_directory_that_no_job_wrote_is_judged_as_it_is(tmp_path):
    from tests.support.small_run import run_small

    run_small(tmp_path / "mine", "grpo.max_num_steps=2")
    verdict = verdict_of(MATRIX, MATRIX.case("tiny-hf"), "cpu-local", outcome(tmp_path / "mine"))
    assert verdict.outcome != "pass"
    assert "the run is not of this case" in verdict.sentence
    assert verdict.failure is None
    assert json.dumps(verdict.to_json())


def test_a_refused_job_is_of_class_queue(tmp_path):
    refused = outcome(tmp_path, executor="slurm", failure="queue")
    verdict = verdict_of(MATRIX, MATRIX.case("tiny-hf"), "cpu-local", refused)
    assert (verdict.outcome, verdict.failure) == ("fail", "queue")
