import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_pytest_plugin import Case, Place, read_result
from slurm_pytest_plugin.local import LocalCluster, what_is_missing
from slurm_pytest_plugin.request import ClusterError, Request
from slurm_pytest_plugin.run import write_script


def submit(cluster, tmp_path, name, body, **more):
    case = Case(name, body, **more)
    script = write_script(case, Place(tmp_path / name, "local", 1))
    return cluster.submit(Request(case, script, f"r/{name}/1.0")), script.parent


def until(cluster, job_id, *states):
    deadline = time.monotonic() + 30
    while (seen := cluster.states([job_id])[job_id]).state not in states:
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)
    return seen


def test_jobs_share_the_gpus_and_wait_for_each_other(tmp_path):
    cluster = LocalCluster(["0", "1", "2"])
    body = "echo gpus=$CUDA_VISIBLE_DEVICES; until [ -e ../go ]; do read -t 0.02 <> <(:); done"
    first, folder = submit(cluster, tmp_path, "a", body, gpus_per_node=2)
    second, _ = submit(cluster, tmp_path, "b", body, gpus_per_node=2)
    third, _ = submit(cluster, tmp_path, "c", "exit 3", gpus_per_node=1)
    until(cluster, first, "RUNNING")
    states = cluster.states([first, second, third])
    assert [states[job].state for job in (first, second, third)] == ["RUNNING", "PENDING", "PENDING"]
    (tmp_path / "go").touch()
    assert until(cluster, first, "COMPLETED").elapsed > 0
    assert until(cluster, second, "COMPLETED").nodes == "here"
    assert until(cluster, third, "FAILED").state == "FAILED"
    assert (folder / "job.log").read_text() == "gpus=0,1\n"
    assert read_result(folder).exit_code == 0


def test_a_job_beyond_its_time_limit_is_warned_and_ended(tmp_path):
    cluster = LocalCluster([])
    body = "trap 'echo warned' USR1; while :; do read -t 0.02 <> <(:); done"
    job, folder = submit(cluster, tmp_path, "a", body, time_limit="00:00:03", notice_seconds=1)
    assert until(cluster, job, "TIMEOUT").elapsed >= 3
    assert "warned" in (folder / "job.log").read_text()


def test_what_is_cancelled_ends_with_all_that_it_started(tmp_path):
    cluster = LocalCluster([])
    job, folder = submit(cluster, tmp_path, "a", "sleep 300 & echo $! >child; wait")
    waiting, _ = submit(cluster, tmp_path, "b", "exit 0")
    while not (folder / "child").is_file() or not (folder / "child").read_text():
        time.sleep(0.02)
    cluster.cancel([waiting, job])
    states = cluster.states([job, waiting])
    assert {seen.state for seen in states.values()} == {"CANCELLED"}
    assert not alive(int((folder / "child").read_text()))


def test_a_job_ends_with_the_pytest_that_started_it(tmp_path):
    (tmp_path / "job.sh").write_text(f"echo $$ >{tmp_path}/pid; sleep 300 & wait")
    starter = (
        "import os, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-m', 'slurm_pytest_plugin.local_job', str(os.getpid()),"
        " '600', '0', *sys.argv[1:]], start_new_session=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", starter, str(tmp_path / "job.sh"), str(tmp_path / "job.log")]
    package = str(Path(__file__).parents[1])
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": package})
    while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    job = int((tmp_path / "pid").read_text())
    assert alive(job)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 20
    while alive(job):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_clean_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("A_SECRET", "s3cret")
    cluster = LocalCluster([])
    plain, plain_folder = submit(cluster, tmp_path, "a", "echo secret=$A_SECRET")
    clean, clean_folder = submit(cluster, tmp_path, "b", "echo secret=$A_SECRET", clean_environment=True)
    until(cluster, plain, "COMPLETED")
    until(cluster, clean, "COMPLETED")
    assert (plain_folder / "job.log").read_text() == "secret=s3cret\n"
    assert (clean_folder / "job.log").read_text() == "secret=\n"


def test_what_this_machine_lacks(tmp_path):
    assert what_is_missing(Case("a", "", gpus_per_node=2), ["0"]) == "a needs 2 GPUs, and this machine has 1"
    assert "needs 8 nodes of a Slurm cluster (64 GPUs)" in what_is_missing(Case("a", "", nodes=8, gpus_per_node=8), [])
    assert what_is_missing(Case("a", "", nodes=2, runs_here=True), []) is None
    assert what_is_missing(Case("a", "", runs_here=False), []) is not None
    with pytest.raises(ClusterError, match="needs 2 GPUs"):
        submit(LocalCluster(["0"]), tmp_path, "a", "", gpus_per_node=2)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
