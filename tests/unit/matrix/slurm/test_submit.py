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
from tests.support.case_runs import case_run, small_matrix
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


PUBLISHED = """\
schema_version: 2
source: {kind: published, title: a table, settings: some}
values:
  timing/total: {value: 147, unit: s}
  timing/refit: {value: 14, unit: s}
"""


class RunsOfASmallCase(FakeSlurm):
    """Each job leaves a run whose refit took so many seconds, 14 being the reference's, on a node of its own."""

    def __init__(self, matrix, *refit):
        super().__init__("COMPLETED", result={"stage": "done", "exit_code": 0})
        self.matrix = matrix
        self.refit = list(refit)

    def submit(self, request):
        job_id = super().submit(request)
        case_run(self.matrix, request.script.parent / "run", {"refit": self.refit[int(job_id) - 1]})
        return job_id

    def states(self, job_ids):
        return {job_id: Seen("COMPLETED", "", f"n{job_id}", 60.0) for job_id in job_ids}


def submit_small(tmp_path, *refit, quarantine=""):
    folder = small_matrix(tmp_path / "matrices")
    (folder / "references" / "cpu-local" / "small.yaml").write_text(PUBLISHED)
    if quarantine:
        (folder / "quarantine.yaml").write_text(quarantine)
    matrix = load_matrix(folder)
    case, cluster, said = matrix.case("small"), RunsOfASmallCase(matrix, *refit), []
    job = job_of(matrix, case, "cpu-local", environ={}, working_directory=tmp_path)
    waiting = Waiting(60.0, said.append, poll_seconds=0.001)
    verdict = submit_and_judge(matrix, case, "cpu-local", job, tmp_path / "run", waiting=waiting, cluster=cluster)
    return verdict, cluster, said


def test_a_run_within_its_band_is_the_last_word(tmp_path):
    verdict, cluster, _ = submit_small(tmp_path, 14.0)
    assert (verdict.outcome, len(cluster.requests)) == ("pass", 1)


def test_outside_the_band_the_median_of_three_runs_on_different_nodes_decides(tmp_path):
    verdict, cluster, said = submit_small(tmp_path, 60.0, 14.0, 15.0)
    assert verdict.outcome == "pass"
    assert "median of 3 runs" in verdict.sentence
    assert [request.exclude for request in cluster.requests] == [(), ("n1",), ("n1", "n2")]
    assert "small: outside the band: the median of three runs decides: again, without n1" in said
    verdict, cluster, _ = submit_small(tmp_path / "slow", 60.0, 14.0, 50.0)
    assert (verdict.outcome, verdict.failure) == ("fail", "regression")
    assert "refit +36 s" in verdict.sentence
    assert len(verdict.runs) == 3


def test_a_case_in_quarantine_is_not_run_again(tmp_path):
    held = """\
schema_version: 1
cases:
  small: {reason: r, issue: "1", owner: me, since: "2026-11-30", until: "2026-12-20"}
"""
    verdict, cluster, _ = submit_small(tmp_path, 60.0, quarantine=held)
    assert (verdict.outcome, len(cluster.requests)) == ("fail", 1)
