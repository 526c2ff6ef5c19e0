"""Jobs that fail, each in its own way, and what is said of them. The longest waits are at the end of the file."""

import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml
from slurm_pytest_plugin import Limits

from grpo.errors import EXIT_REQUEUE
from grpo.matrix.schema import Reference
from grpo.matrix.slurm.cases import verdict_of
from grpo.telemetry.reader import read_run
from tests.slurm.conftest import MATRIX, PARTITION, Cluster, matrix_job, submit
from tests.slurm.jobs import LOST_STEPS, PREEMPTED_STEPS, REQUEUES, SLOW_SECONDS, shell

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.jobs("crash")
def test_a_trainer_that_fails_is_a_crash(jobs):
    outcome, verdict = jobs.end("crash")
    assert (verdict.outcome, verdict.failure, outcome.state) == ("fail", "crash", "FAILED")
    assert "there is no such file" in outcome.tail()


@pytest.mark.jobs("memory")
def test_a_job_without_memory_is_told_by_the_scheduler(jobs):
    outcome, verdict = jobs.end("memory")
    # Without cgroups the scheduler kills by what it polls, and says FAILED; the trainer's own code is then 137.
    assert (verdict.outcome, verdict.failure) == ("fail", "out_of_memory"), (verdict.sentence, outcome)


@pytest.mark.jobs("cancelled")
def test_a_cancelled_job_does_not_pass_and_leaves_no_scratch(jobs):
    outcome, verdict = jobs.end("cancelled")
    assert (verdict.outcome, verdict.failure, outcome.state) == ("fail", "unknown", "CANCELLED")
    assert not scratch_of(jobs.done["cancelled"])


@pytest.mark.jobs("cancelled-saved")
def test_a_cancelled_job_that_saved_does_not_come_back(jobs):
    outcome, verdict = jobs.end("cancelled-saved")
    assert (verdict.outcome, verdict.failure, outcome.state) == ("fail", "unknown", "CANCELLED")
    assert (outcome.restarts, len(outcome.jobs)) == (0, 1)
    assert outcome.result.exit_code in {EXIT_REQUEUE, 137}, outcome.tail()  # on a busy machine it is not done in time


@pytest.mark.nightly
@pytest.mark.jobs("cancelled-nodes")
def test_a_cancelled_job_of_several_nodes_leaves_no_scratch_on_any(jobs):
    outcome, verdict = jobs.end("cancelled-nodes")
    assert (verdict.outcome, verdict.failure, outcome.state) == ("fail", "unknown", "CANCELLED")
    assert processes_of(jobs.done["cancelled-nodes"]) == []
    assert not scratch_of(jobs.done["cancelled-nodes"])


@pytest.mark.jobs("nowhere")
def test_a_script_that_fails_before_the_trainer_is_tried_on_other_nodes_and_is_infra(jobs):
    outcome, verdict = jobs.end("nowhere")
    assert (verdict.outcome, verdict.failure) == ("fail", "infra")
    assert (outcome.attempts, outcome.result.stage) == (3, "setup")
    assert len(outcome.excluded) == 2
    assert "no Python at /nowhere/bin/python" in outcome.tail()
    kept = json.loads((outcome.folder.parent / "attempts.json").read_text())
    assert [each["failure"] for each in kept["attempts"]] == ["infra"] * 3


@pytest.mark.jobs("slow-node")
def test_a_node_that_its_canary_finds_slow_is_left_out(jobs, tmp_path_factory):
    outcome, verdict = jobs.end("slow-node")
    assert verdict.outcome == "pass", (verdict.sentence, outcome.sentence, outcome.tail(40))
    assert (outcome.attempts, outcome.why) == (2, "infra (FAILED)")
    assert outcome.excluded == (marked(outcome, "canary"),)
    assert outcome.nodes not in outcome.excluded


@pytest.mark.jobs("impossible")
def test_a_request_that_no_node_can_meet_is_refused_at_once(jobs):
    outcome, verdict = jobs.end("impossible")
    assert (verdict.failure, outcome.jobs) == ("queue", ())
    assert "not available" in outcome.sentence or "Memory specification" in outcome.sentence


@pytest.mark.jobs("hidden")
def test_a_step_that_fails_under_a_script_that_ends_well_is_what_the_script_says(jobs):
    assert jobs.wait("hidden").passed  # the script's own word; grpo's never hides its trainer's


@pytest.mark.jobs("crash")
def test_a_job_that_can_never_start_fails_at_once(jobs, cluster, tmp_path):
    [failed] = jobs.wait("crash").jobs
    pair = shell("hopeless", "true", options=(f"--dependency=afterok:{failed}", "--cpus-per-task=1", "--mem=200"))
    outcome = submit(cluster, tmp_path / "r", pair).wait("hopeless")
    assert (outcome.failure, outcome.state) == ("queue", "PENDING")
    assert "DependencyNeverSatisfied" in outcome.message


@pytest.mark.jobs("again")
def test_a_job_that_saved_is_started_again_in_its_folder(jobs):
    outcome = jobs.wait("again")
    assert (outcome.passed, outcome.restarts, len(outcome.jobs)) == (True, 1, 2)


@pytest.mark.jobs("requeues")
def test_a_job_that_requeues_itself_is_waited_for(jobs):
    outcome = jobs.wait("requeues")
    assert (outcome.passed, len(outcome.jobs)) == (True, 1)


@pytest.mark.jobs("blames")
def test_a_fault_of_a_node_is_tried_again_on_another(jobs):
    outcome = jobs.wait("blames")
    assert (outcome.passed, outcome.attempts) == (True, 2)
    first, second = (outcome.folder.parents[2] / "blamed").read_text().split()
    assert outcome.excluded == (first,)
    assert first != second


@pytest.mark.jobs("elsewhere", "no-others")
def test_a_further_run_is_on_other_nodes_where_there_are_others(jobs):
    outcome = jobs.wait("elsewhere")
    assert outcome.attempts == 2
    assert outcome.earlier[0].nodes != outcome.nodes
    outcome = jobs.wait("no-others")
    assert (outcome.passed, outcome.attempts) == (True, 2)
    assert outcome.earlier[0].nodes == outcome.nodes
    assert "on the same nodes, since there are no others" in outcome.sentence


@pytest.mark.jobs("paced", "slow")
def test_a_run_that_is_slow_on_purpose_fails_by_the_phase_that_is(jobs):
    normal, _ = jobs.end("paced")
    ready = yaml.safe_load((normal.folder / "run" / "reference.yaml").read_text())
    # As it would be of five runs that differ by little: a machine that is shared has no such reference.
    ready["source"] |= {"runs": [f"run-{number}" for number in range(5)], "nodes": ready["source"]["nodes"][:1]}
    for figure in ready["values"].values():
        figure["spread"] = 0.02
    rss = [record["memory/rss_gib"] for record in read_run(normal.folder / "run").metrics]
    assert max(rss[-5:]) < 1.1 * max(rss[5:10]), rss
    slow, before = jobs.end("slow")
    matrix = replace(MATRIX, references={(PARTITION, "slow"): Reference.model_validate(ready)})
    verdict = verdict_of(matrix, jobs.cases["slow"], PARTITION, slow)
    assert (verdict.outcome, verdict.failure) == ("fail", "regression"), (verdict.sentence, before.sentence)
    assert verdict.attribution[0].phase == "rewards", verdict.sentence
    assert verdict.attribution[0].seconds > 0.8 * 16 * SLOW_SECONDS
    assert (verdict.rerun.rule, verdict.rerun.runs) == (4, 2)


@pytest.mark.jobs("stuck")
def test_a_step_that_does_not_end_ends_the_job_with_its_stacks(jobs):
    outcome, verdict = jobs.end("stuck")
    assert (verdict.outcome, verdict.failure, outcome.result.exit_code) == ("fail", "crash", 1)
    said = outcome.tail(400)
    assert "Timeout (0:00:0" in said
    assert "grpo/rewards/pool.py" in said  # where it was


def test_a_job_that_waits_too_long_is_of_the_class_queue(cluster, tmp_path):
    pair = matrix_job("waits", options=["--begin=now+1hour"])
    outcome, verdict = submit(cluster, tmp_path / "r", pair, limits=Limits(queue=2, poll=0.5)).end("waits")
    assert (verdict.outcome, verdict.failure, outcome.state) == ("fail", "queue", "PENDING")
    assert outcome.result is None


@pytest.mark.jobs("killed")
def test_nodes_that_do_not_join_or_come_late_and_a_worker_that_is_killed(jobs):
    """The first attempt lacks a node; the second has one that comes late, and then loses a rank."""
    outcome, verdict = jobs.end("killed")
    assert (outcome.attempts, outcome.excluded) == (2, (marked(outcome, "ray"),)), outcome.sentence
    assert (verdict.outcome, verdict.failure) == ("fail", "crash"), verdict.sentence
    job_id, workers = jobs.done["killed"]
    assert processes_of(job_id) == []
    assert sorted(workers) == [1, 2]  # the engine is beside the first rank, wherever that is
    assert "rank" in outcome.tail(60)
    assert not scratch_of(job_id)


def marked(outcome, fault):
    """The node that was made to fail."""
    return (outcome.folder.parents[2] / f"{fault}-marks" / "bad").read_text().strip()


def processes_of(job_id):
    """What is left of a job; its end is a matter of moments."""
    for _ in range(100):
        left = [process for process in psutil.process_iter() if environ_of(process).get("SLURM_JOB_ID") == job_id]
        if not left:
            break
        psutil.wait_procs(left, timeout=1)
    return left


def environ_of(process):
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def scratch_of(job_id):
    """What is left of its folders; each node removes its own when the job's last process there has ended."""
    for _ in range(100):
        left = list(Path("/tmp").glob(f"grpo-{job_id}-*"))  # noqa: S108
        if not left:
            break
        time.sleep(0.2)
    return left


@pytest.mark.jobs("limit")
def test_a_job_beyond_its_time_limit(jobs):
    outcome, verdict = jobs.end("limit")
    assert (verdict.outcome, verdict.failure, outcome.state) == ("fail", "timeout", "TIMEOUT")


@pytest.mark.jobs("preempted")
def test_a_run_that_is_pre_empted_saves_and_goes_on_from_there(jobs):
    run = preempted(jobs, "preempted")
    assert run.manifest.resumes[0].step not in {0, *range(5, PREEMPTED_STEPS, 5)}  # where it was told, not at a period
    assert [event["step"] for event in run.events if event["kind"] == "stop_requested"] == [
        run.manifest.resumes[0].step
    ]


@pytest.mark.nightly
@pytest.mark.jobs("preempted-nodes")
def test_a_run_whose_ray_is_ended_by_a_pre_emption_goes_on_from_its_last_checkpoint(jobs):
    run = preempted(jobs, "preempted-nodes")
    assert run.manifest.resumes[0].step in range(5, PREEMPTED_STEPS, 5)


def preempted(jobs, name):
    outcome, verdict = jobs.end(name)
    assert verdict.outcome == "pass", (verdict.sentence, outcome.sentence, outcome.tail(40))
    assert outcome.jobs == (jobs.done[name],)  # Slurm has requeued it
    run = read_run(outcome.folder / "run")
    assert len(run.manifest.resumes) == 1
    assert run.steps == list(range(1, PREEMPTED_STEPS + 1))
    assert not scratch_of(outcome.jobs[0])
    return run


@pytest.mark.jobs("lost")
def test_a_run_goes_on_where_it_was_when_its_node_was_lost(cluster, jobs):
    try:
        outcome, verdict = jobs.end("lost")
    finally:
        cluster.start()
    node = jobs.done["lost"]
    assert outcome.jobs == (outcome.jobs[0],)
    assert outcome.nodes != node
    assert verdict.outcome == "pass", (verdict.sentence, outcome.tail(40))
    for path in scratch_of(outcome.jobs[0]):
        assert node in path.name
        shutil.rmtree(path)  # as a boot would
    run = read_run(outcome.folder / "run")
    assert run.manifest.resumes
    assert run.steps == list(range(1, LOST_STEPS + 1))


def test_the_jobs_outlive_their_controller_and_the_one_who_waits(request, cluster, tmp_path):
    if "jobs" in request.fixturenames or any("jobs" in item.fixturenames for item in request.session.items):
        others = request.getfixturevalue("jobs")
        for name in others.run.jobs:  # none may ask a controller that is away
            others.wait(name)
    pairs = [shell("stays", "until [ -e go ]; do sleep 0.2; done")]
    first = submit(cluster, tmp_path / "r", *pairs)
    folder = first.until(
        "stays", lambda folder: (folder / "body.sh").is_file() and first.run.jobs["stays"].seen is not None
    )
    cluster.end_daemon("slurmctld", signal.SIGTERM)  # one that is killed forgets the newest jobs
    try:
        first.run.tick()
        assert any("asking again" in line for line in first.said)
    finally:
        cluster.start()
    # A second pytest with the same run id; the first is gone.
    second = submit(cluster, tmp_path / "r", *pairs)
    assert second.run.jobs["stays"].job_id == first.run.jobs["stays"].job_id
    (folder / "go").touch()
    assert second.wait("stays").passed


def test_with_accounting_the_hours_of_all_runs_are_known(tmp_path, monkeypatch):
    from slurm_pytest_plugin import SlurmClient

    state = tmp_path / "c"
    state.mkdir()
    monkeypatch.setenv("SLURM_CONF", str(state / "s" / "etc" / "slurm.conf"))
    accounted = Cluster(state, SlurmClient(), accounting=True)
    try:
        accounted.start()
        pairs = shell("twice", f"sleep 3; {REQUEUES}", max_restarts=1), shell("bad", "exit 3")
        jobs = submit(accounted, tmp_path / "r", *pairs)
        outcome = jobs.wait("twice")
        assert outcome.passed
        assert outcome.ran >= 5
        assert jobs.wait("bad").failure == "crash"
    finally:
        accounted.stop()
