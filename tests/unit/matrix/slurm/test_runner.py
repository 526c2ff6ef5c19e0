import json
from pathlib import Path

import pytest

from grpo.errors import MatrixError, SlurmError
from grpo.matrix.load import load_matrix
from grpo.matrix.slurm.client import JobState
from grpo.matrix.slurm.runner import prepare_job, run_job, run_seconds, wait_for
from tests.support.fake_cluster import FakeCluster, waiting

MATRIX = load_matrix(Path(__file__).parents[4] / "matrices")
CASE = MATRIX.case("tiny-hf")


def test_the_wait_goes_through_the_queue_to_the_end():
    wait, said, _ = waiting()
    cluster = FakeCluster("PENDING", "PENDING", JobState("RUNNING", "", "node1"), "COMPLETING", "COMPLETED")
    assert wait_for(cluster, "7", wait).state == "COMPLETED"
    assert said == ["job 7: PENDING", "job 7: RUNNING node1", "job 7: COMPLETING", "job 7: COMPLETED"]
    assert cluster.cancelled == []


def test_a_job_that_never_starts_is_cancelled_after_the_time_for_the_queue():
    wait, _, clock = waiting(queue_seconds=30)
    cluster = FakeCluster(JobState("PENDING", "Resources"))
    assert wait_for(cluster, "7", wait).state == "PENDING"
    assert 30 < clock.now <= 32
    assert cluster.cancelled == ["7"]


def test_a_job_that_cannot_start_is_cancelled_at_once():
    wait, said, clock = waiting()
    cluster = FakeCluster(JobState("PENDING", "PartitionNodeLimit"))
    assert wait_for(cluster, "7", wait).state == "PENDING"
    assert clock.now == 0
    assert "waits for PartitionNodeLimit" in said[-1]


def test_a_job_that_the_scheduler_does_not_end_is_given_up():
    wait, _, clock = waiting(run_seconds=10)
    with pytest.raises(SlurmError, match="job 7 is RUNNING 11 s after its start"):
        wait_for(FakeCluster("PENDING", "PENDING", "RUNNING"), "7", wait)
    assert clock.now == 13


def test_a_scheduler_out_of_reach_is_asked_again_for_a_while():
    wait, said, _ = waiting()
    down = SlurmError("slurmctld is away")
    assert wait_for(FakeCluster("RUNNING", down, down, "COMPLETED"), "7", wait).state == "COMPLETED"
    assert "job 7: slurmctld is away; asking again" in said
    wait, _, clock = waiting()
    with pytest.raises(SlurmError, match="away"):
        wait_for(FakeCluster("RUNNING", down), "7", wait)
    assert 120 < clock.now < 125


def submit(tmp_path, *states, result=None):
    def leave(folder):
        if result is not None:
            (folder / "result.json").write_text(json.dumps({"schema_version": 1, "case": CASE.id, **result}))

    folder = tmp_path / "job"
    script = prepare_job(MATRIX, CASE, "cpu-local", folder, environ={}, working_directory=tmp_path)
    cluster = FakeCluster(*states, on_submit=leave)
    wait, _, _ = waiting()
    verdict, _ = run_job(cluster, script, wait, matrix=MATRIX, case=CASE, partition="cpu-local")
    return verdict, cluster


@pytest.mark.parametrize(
    ("state", "result", "failure"),
    [
        ("FAILED", {"stage": "trainer", "exit_code": 2}, "crash"),
        ("COMPLETED", {"stage": "trainer", "exit_code": 1}, "crash"),
        ("COMPLETED", None, "unknown"),
        ("TIMEOUT", None, "timeout"),
        ("NODE_FAIL", None, "infra"),
        ("OUT_OF_MEMORY", None, "out_of_memory"),
        (JobState("PENDING", "InvalidAccount"), None, "queue"),
    ],
)
def test_the_verdict_of_a_job_that_failed(tmp_path, state, result, failure):
    verdict, cluster = submit(tmp_path, state, result=result)
    assert (verdict.outcome, verdict.failure) == ("fail", failure)
    assert cluster.submitted == [tmp_path / "job" / "job.sh"]


def test_a_job_that_is_done_without_a_run_directory_does_not_pass(tmp_path):
    verdict, _ = submit(tmp_path, "COMPLETED", result={"stage": "done", "exit_code": 0})
    assert verdict.outcome == "fail"


def test_an_interrupt_cancels_the_own_job(tmp_path):
    cluster = FakeCluster("RUNNING", KeyboardInterrupt())
    script = prepare_job(MATRIX, CASE, "cpu-local", tmp_path / "job", environ={}, working_directory=tmp_path)
    wait, _, _ = waiting()
    cluster.states[1] = SlurmError("x")

    def interrupted(_):
        raise KeyboardInterrupt

    wait = type(wait)(wait.queue_seconds, wait.run_seconds, wait.say, wait.clock, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_job(cluster, script, wait, matrix=MATRIX, case=CASE, partition="cpu-local")
    assert cluster.cancelled == ["7"]


def test_a_folder_that_holds_something_is_not_reused(tmp_path):
    (tmp_path / "old").write_text("")
    with pytest.raises(MatrixError, match="is not empty"):
        prepare_job(MATRIX, CASE, "cpu-local", tmp_path, environ={}, working_directory=tmp_path)


def test_the_scheduler_has_time_to_end_a_job_itself():
    assert run_seconds(CASE) == 420
