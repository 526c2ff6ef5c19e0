"""Jobs that fail, each in its own way, and what is said of them. The longest waits are at the end of the file."""

import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from slurm_pytest_plugin import Case, Limits

from grpo.telemetry.reader import read_run
from tests.slurm.conftest import Cluster, matrix_job, submit

pytestmark = pytest.mark.timeout(600)
FOR_EVER = {"steps": 1_000_000, "more": ["grpo.max_num_epochs=1000000"]}
SAVES = ["checkpointing.enabled=true", "checkpointing.save_period=10"]

# On the first node it says that this is at fault.
BLAMES = """
printf '{"exit_code": null, "stage": "setup", "failure": "infra", "exclude": ["%s"]}' "$SLURMD_NODENAME" >result.json
echo "$SLURMD_NODENAME" >>../../../blamed
[ "$(wc -l <../../../blamed)" -lt 2 ] || printf '{"exit_code": 0, "stage": "done"}' >result.json
"""
REQUEUES = "[ -e saved ] && exit 0; touch saved; scontrol requeue $SLURM_JOB_ID; sleep 60"


def shell(name, script, **more):
    """A job of the plugin alone, which has no case."""
    defaults = {"time_limit": "00:05:00", "options": ("--cpus-per-task=1", "--mem=200")}
    return None, Case(name, script, **{**defaults, **more})


@pytest.fixture(scope="module")
def jobs(cluster, tmp_path_factory):
    """All those that need no help to fail, at once."""
    submitted = submit(
        cluster, tmp_path_factory.mktemp("faults") / "r",
        matrix_job("limit", time_limit="00:01:00", **FOR_EVER),
        matrix_job("crash", more=["data.default.prompt_file=nowhere.txt"]),
        matrix_job("memory", options=["--mem=60M"]),
        matrix_job("impossible", options=["--mem=900G"]),
        shell("hidden", "false; true"),
        shell("again", "[ -e saved ] && exit 0; touch saved; exit 85", requeue_exit_code=85, max_restarts=1),
        shell("requeues", REQUEUES, max_restarts=1),
        shell("blames", BLAMES, writes_result=True),
    )  # fmt: skip
    yield submitted
    submitted.run.cancel()


def test_a_trainer_that_fails_is_a_crash(jobs):
    outcome, verdict = jobs.end("crash")
    assert (verdict.outcome, verdict.failure, outcome.state) == ("fail", "crash", "FAILED")
    assert "there is no such file" in outcome.tail()


def test_a_job_without_memory_is_told_by_the_scheduler(jobs):
    outcome, verdict = jobs.end("memory")
    # Without cgroups the scheduler kills by what it polls, and says FAILED; the trainer's own code is then 137.
    assert (verdict.outcome, verdict.failure) == ("fail", "out_of_memory"), (verdict.sentence, outcome)


def test_a_cancelled_job_does_not_pass_and_leaves_no_scratch(cluster, tmp_path):
    jobs = submit(cluster, tmp_path / "r", matrix_job("cancelled", **FOR_EVER))
    jobs.until("cancelled", has_steps)
    job_id = jobs.run.jobs["cancelled"].job_id
    subprocess.run(["scancel", job_id], check=True, timeout=30)
    outcome, verdict = jobs.end("cancelled")
    assert (verdict.outcome, verdict.failure, outcome.state) == ("fail", "unknown", "CANCELLED")
    assert not list(Path("/tmp").glob(f"grpo-{job_id}-*"))  # noqa: S108


def test_a_request_that_no_node_can_meet_is_refused_at_once(jobs):
    outcome, verdict = jobs.end("impossible")
    assert (verdict.failure, outcome.jobs) == ("queue", ())
    assert "not available" in outcome.sentence or "Memory specification" in outcome.sentence


def test_a_step_that_fails_under_a_script_that_ends_well_is_what_the_script_says(jobs):
    assert jobs.run.wait("hidden").passed  # the script's own word; grpo's never hides its trainer's


def test_a_job_that_can_never_start_fails_at_once(jobs, cluster, tmp_path):
    [failed] = jobs.run.wait("crash").jobs
    pair = shell("hopeless", "true", options=(f"--dependency=afterok:{failed}", "--cpus-per-task=1", "--mem=200"))
    outcome = submit(cluster, tmp_path / "r", pair).run.wait("hopeless")
    assert (outcome.failure, outcome.state) == ("queue", "PENDING")
    assert "DependencyNeverSatisfied" in outcome.message


def test_a_job_that_saved_is_started_again_in_its_folder(jobs):
    outcome = jobs.run.wait("again")
    assert (outcome.passed, outcome.restarts, len(outcome.jobs)) == (True, 1, 2)


def test_a_job_that_requeues_itself_is_waited_for(jobs):
    outcome = jobs.run.wait("requeues")
    assert (outcome.passed, len(outcome.jobs)) == (True, 1)


def test_a_fault_of_a_node_is_tried_again_on_another(jobs):
    outcome = jobs.run.wait("blames")
    assert (outcome.passed, outcome.attempts) == (True, 2)
    first, second = (outcome.folder.parents[2] / "blamed").read_text().split()
    assert outcome.excluded == (first,)
    assert first != second


def test_a_job_that_waits_too_long_is_of_the_class_queue(cluster, tmp_path):
    pair = matrix_job("waits", options=["--begin=now+1hour"])
    outcome, verdict = submit(cluster, tmp_path / "r", pair, limits=Limits(queue=2, poll=0.5)).end("waits")
    assert (verdict.outcome, verdict.failure, outcome.state) == ("fail", "queue", "PENDING")
    assert outcome.result is None


def checkpoints(folder):
    path = folder / "run" / "events.jsonl"
    return [] if not path.is_file() else [line for line in path.read_text().splitlines() if '"checkpoint"' in line]


def test_a_worker_that_is_killed_ends_the_job_with_its_rank(cluster, tmp_path):
    more = [*FOR_EVER["more"], "policy.generation.backend=hf"]
    jobs = submit(cluster, tmp_path / "r", matrix_job("killed", "tiny-70b-dtensor", more=more, steps=1_000_000))
    try:
        jobs.until("killed", has_steps)
        seen = jobs.run.jobs["killed"].seen
        job_id, node = jobs.run.jobs["killed"].job_id, cluster.client.expand(seen.nodes)[1]
        next(workers_of(job_id, node)).kill()
        outcome, verdict = jobs.end("killed")
    finally:
        jobs.run.cancel()
    assert (verdict.outcome, verdict.failure) == ("fail", "crash"), verdict.sentence
    assert "rank" in outcome.tail(60)
    assert not list(Path("/tmp").glob(f"grpo-{job_id}-*"))  # noqa: S108


def has_steps(folder):
    path = folder / "run" / "metrics.jsonl"
    return path.is_file() and path.stat().st_size > 0


def workers_of(job_id, node):
    """The ranks of a job on a node."""
    for process in psutil.process_iter(["cmdline"]):
        try:
            environ = process.environ()
        except (psutil.Error, OSError):
            continue
        is_there = environ.get("SLURM_JOB_ID") == job_id and environ.get("SLURMD_NODENAME") == node
        if is_there and any("RankHost" in part for part in process.info["cmdline"] or []):
            yield process


def test_a_job_beyond_its_time_limit(jobs):
    outcome, verdict = jobs.end("limit")
    assert (verdict.outcome, verdict.failure, outcome.state) == ("fail", "timeout", "TIMEOUT")


def test_a_run_goes_on_where_it_was_when_its_node_was_lost(cluster, jobs, tmp_path):
    for name in jobs.cases:  # they may be on that node
        jobs.run.wait(name)
    jobs = submit(cluster, tmp_path / "r", matrix_job("lost", steps=150, more=SAVES))
    try:
        folder = jobs.until("lost", lambda folder: len(checkpoints(folder)) >= 2)
        node = jobs.run.jobs["lost"].seen.nodes
        cluster.lose_node(node)
        outcome, verdict = jobs.end("lost")
    finally:
        jobs.run.cancel()
        cluster.start()
    assert outcome.jobs == (outcome.jobs[0],)
    assert outcome.nodes != node
    assert verdict.outcome == "pass", (verdict.sentence, outcome.tail(40))
    shutil.rmtree(f"/tmp/grpo-{outcome.jobs[0]}-{node}.job", ignore_errors=True)  # noqa: S108 - as a boot would
    run = read_run(folder / "run")
    assert run.manifest.resumes
    assert run.steps == list(range(1, 151))


def test_the_jobs_outlive_their_controller_and_the_one_who_waits(cluster, jobs, tmp_path):
    for name in jobs.cases:
        jobs.run.wait(name)
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
    assert second.run.wait("stays").passed


@pytest.mark.nightly
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
        outcome = jobs.run.wait("twice")
        assert outcome.passed
        assert outcome.ran >= 5
        assert jobs.run.wait("bad").failure == "crash"
    finally:
        accounted.stop()
