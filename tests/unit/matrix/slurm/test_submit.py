import itertools
from pathlib import Path

import pytest
from slurm_pytest_plugin import Seen, classify
from slurm_pytest_plugin.result import Result
from slurm_pytest_plugin.states import FINAL

from grpo.errors import EXIT_REQUEUE, MatrixError
from grpo.matrix.judge.failure import JobOutcome
from grpo.matrix.judge.failure import classify as classify_run
from grpo.matrix.load import load_matrix
from grpo.matrix.slurm.cases import job_of
from grpo.matrix.slurm.submit import Waiting, submit_and_judge, write_dry
from tests.support.fake_slurm import FakeSlurm

MATRIX = load_matrix(Path(__file__).parents[4] / "matrices")
CASE = MATRIX.case("tiny-hf")


def job(tmp_path):
    return job_of(MATRIX, CASE, "cpu-local", environ={}, working_directory=tmp_path)


def submit(tmp_path, cluster, queue_seconds=60.0):
    said = []
    waiting = Waiting(queue_seconds, said.append, poll_seconds=0.001)
    folder = tmp_path / "run"
    return submit_and_judge(MATRIX, CASE, "cpu-local", job(tmp_path), folder, waiting=waiting, cluster=cluster), said


@pytest.mark.parametrize(
    ("state", "result", "failure"),
    [
        ("FAILED", {"stage": "trainer", "exit_code": 2}, "crash"),
        ("COMPLETED", {"stage": "trainer", "exit_code": 1}, "crash"),
        ("COMPLETED", None, "unknown"),
        ("TIMEOUT", None, "timeout"),
        ("NODE_FAIL", None, "infra"),
        ("OUT_OF_MEMORY", None, "out_of_memory"),
        (Seen("PENDING", "InvalidAccount"), None, "queue"),
    ],
)
def test_a_job_that_did_not_go_to_its_end_is_judged_by_its_class(tmp_path, state, result, failure):
    verdict, _ = submit(tmp_path, FakeSlurm(state, result=result))
    assert (verdict.outcome, verdict.failure) == ("fail", failure)


def test_infra_is_tried_again_twice_and_a_refusal_is_of_class_queue(tmp_path):
    cluster = FakeSlurm("NODE_FAIL")
    submit(tmp_path, cluster)
    assert len(cluster.requests) == 3
    refused = FakeSlurm("RUNNING", refuses="sbatch: Requested node configuration is not available")
    verdict, said = submit(tmp_path / "other", refused)
    assert (verdict.outcome, verdict.failure) == ("fail", "queue")
    assert "Requested node configuration" in said[-1]


def test_an_interruption_cancels_the_job(tmp_path):
    cluster = FakeSlurm("RUNNING", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        submit(tmp_path, cluster)
    assert cluster.cancelled == ["1"]


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").touch()
    with pytest.raises(MatrixError, match="is not empty"):
        submit(tmp_path, FakeSlurm("COMPLETED"))
    with pytest.raises(MatrixError, match="is not empty"):
        write_dry(job(tmp_path), tmp_path / "run")


def test_a_dry_run_writes_the_script(tmp_path):
    write_dry(job(tmp_path), tmp_path / "run")
    assert (tmp_path / "run" / "tiny-hf" / "attempt-1" / "job.sh").read_text().startswith("#!/bin/bash\n#SBATCH ")


RESULTS = [
    None, Result(None, "setup"), Result(0, "done"), Result(0, "trainer"), Result(1, "trainer"), Result(137, "trainer"),
    Result(EXIT_REQUEUE, "trainer", "USR1"), Result(EXIT_REQUEUE, "trainer", "TERM"), Result(EXIT_REQUEUE, "trainer"),
    Result(1, "trainer", "USR1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "result"), list(itertools.product([*sorted(FINAL - {"REVOKED"}), "PENDING", None], RESULTS))
)
def test_who_waits_for_a_job_and_who_judges_it_say_the_same_of_its_end(state, result):
    outcome = (
        JobOutcome(state) if result is None else JobOutcome(state, result.exit_code, result.stage, result.stopped_by)
    )
    assert classify_run(outcome) == classify(state, result, EXIT_REQUEUE)
