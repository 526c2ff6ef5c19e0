"""A case through the whole chain: matrix, job script, Slurm, run directory, judge."""

import json
import subprocess

import pytest

from grpo.errors import SlurmError
from grpo.matrix.run import read_result

pytestmark = pytest.mark.timeout(300)


def test_the_tiny_case_passes(judged):
    verdict, end, folder = judged()
    assert verdict.outcome == "pass", (verdict.sentence, (folder / "job.log").read_text())
    assert end.state == "COMPLETED"
    assert verdict.steps.judged == 25
    assert all(bound.holds for bound in verdict.bounds)
    assert read_result(folder).stage == "done"
    environment = json.loads((folder / "run" / "environment.json").read_text())
    assert environment["stack"]["torch"]


def test_a_trainer_that_fails_is_a_crash(judged):
    verdict, end, folder = judged(more=["data.default.prompt_file=nowhere.txt"])
    assert (verdict.outcome, verdict.failure, end.state) == ("fail", "crash", "FAILED")
    assert "there is no such file" in (folder / "job.log").read_text()


def test_a_job_without_memory_is_told_by_the_scheduler(judged, cluster):
    verdict, end, _ = judged(options=["--mem=60M"])
    # Without cgroups the scheduler kills by what it polls, and says FAILED; the trainer's own code is then 137.
    assert (verdict.outcome, verdict.failure) == ("fail", "out_of_memory"), (verdict.sentence, end)


def test_a_cancelled_job_does_not_pass(judged):
    def cancel(text):
        if "RUNNING" in text:
            subprocess.run(["scancel", text.split()[1].rstrip(":")], check=True, timeout=30)

    verdict, end, _ = judged(on_say=cancel, steps=1_000_000, more=["grpo.max_num_epochs=1000000"])
    assert (verdict.outcome, verdict.failure, end.state) == ("fail", "unknown", "CANCELLED")


def test_a_job_beyond_its_time_limit(judged):
    verdict, end, _ = judged(steps=1_000_000, time_limit="00:01:00", more=["grpo.max_num_epochs=1000000"])
    assert (verdict.outcome, verdict.failure, end.state) == ("fail", "timeout", "TIMEOUT")


def test_a_request_that_no_node_can_meet_is_refused_at_once(judged):
    with pytest.raises(SlurmError, match=r"sbatch: .*(not available|Memory specification)"):
        judged(options=["--mem=900G"])


def test_a_job_that_waits_too_long_is_of_the_class_queue(judged):
    verdict, end, folder = judged(options=["--begin=now+1hour"], queue_seconds=3.0)
    assert (verdict.outcome, verdict.failure, end.state) == ("fail", "queue", "PENDING")
    assert read_result(folder) is None
