import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo.matrix.slurm import node

# What the node's program starts instead of Ray: the first words of its arguments and environment, then it waits.
FAKE_RAY = """
import json, os, socket, sys, time
arguments = sys.argv[1:]
if arguments[0] == "health-check":
    sys.exit(0)
environment = {k: os.environ.get(k) for k in ("TMPDIR", "VLLM_HOST_IP", "XDG_CACHE_HOME", "RAY_worker_niceness")}
record = {"arguments": arguments, "environment": environment}
temporary = [a.split("=", 1)[1] for a in arguments if a.startswith("--temp-dir=")][0]
logs = os.path.join(temporary, "session_2026", "logs")
os.makedirs(logs)
open(os.path.join(logs, "worker-1.out"), "w").write("x" * (3 << 20) + "the end")
open(os.environ["RECORD"], "a").write(json.dumps(record) + "\\n")
port = [a.split("=", 1)[1] for a in arguments if a.startswith("--port=")]
if port:
    listener = socket.socket()
    listener.bind(("127.0.0.1", int(port[0])))
    listener.listen()
time.sleep(600)
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    package = tmp_path / "fake" / "ray" / "scripts"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "scripts.py").write_text(FAKE_RAY)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'fake'}{os.pathsep}{Path(__file__).parents[4]}")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    (tmp_path / "job").mkdir()
    return tmp_path


def arguments(job, command, *more):
    return [
        command,
        "--job-dir",
        str(job / "job"),
        "--name",
        "n1",
        "--scratch",
        str(job / "s"),
        "--interface",
        "lo",
        *more,
    ]


def start(job, command, *more):
    return subprocess.Popen([sys.executable, "-m", "grpo.matrix.slurm.node", *arguments(job, command, *more)])


def wait_until(condition, process, seconds=60):
    ends = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.02)


def records(job):
    return [json.loads(line) for line in (job / "record").read_text().splitlines()]


def test_a_node_says_what_it_is(tmp_path):
    (tmp_path / "job").mkdir()
    scratch = ["--job-dir", str(tmp_path / "job"), "--name", "n1", "--scratch", "/tmp/s"]  # noqa: S108
    assert node.main(["check", *scratch, "--interface", "lo"]) == 0
    found = json.loads((tmp_path / "job" / "nodes" / "n1.json").read_text())
    assert (found["host"], found["address"]) == ("n1", "127.0.0.1")
    assert not (tmp_path / "job" / "nodes" / "n1.bad").exists()


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--interface", "bond9"], "control_interface bond9"),
        (["--hcas", "mlx5_99"], "network.hcas mlx5_99"),
        (["--gpus", "99"], "GPUs of 99"),
        (["--scratch", "/" + "x" * 60], "longer than 44"),
    ],
)
def test_a_node_that_is_not_the_partitions_is_refused(tmp_path, capsys, more, problem):
    (tmp_path / "job").mkdir()
    basis = ["check", "--job-dir", str(tmp_path / "job"), "--name", "n1", "--scratch", "/s", "--interface", "lo"]
    assert node.main([*basis, *more]) == 1
    assert problem in (tmp_path / "job" / "nodes" / "n1.bad").read_text()
    assert problem in capsys.readouterr().err


def test_all_nodes_come_into_the_run_directory(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "nodes").mkdir()
    for name in ("n2", "n1"):
        (tmp_path / "nodes" / f"{name}.json").write_text(json.dumps({"schema_version": 1, "host": name, "gpus": []}))
    assert node.main(["gather", "--job-dir", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "run" / "nodes.json").read_text()) == {
        "schema_version": 1, "nodes": [{"host": "n1", "gpus": []}, {"host": "n2", "gpus": []}],
    }  # fmt: skip


def test_what_killed_jobs_left_is_removed_and_nothing_else(tmp_path, monkeypatch):
    names = ["grpo-5-n1", "grpo-6-n1.job", "grpo-7-n1", "grpo-8-n1", "grpo-5-n11", "grpo-5-n2", "grpo-x-n1", "other"]
    for name in names:
        (tmp_path / name).mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/bash\necho 7\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/nothing")
    node.remove_stale(tmp_path / "grpo-8-n1", 8, "n1")
    assert {path.name for path in tmp_path.iterdir()} == {*names, "bin"}  # nobody could be asked
    monkeypatch.setenv("PATH", f"{squeue.parent}:/usr/bin:/bin")
    node.remove_stale(tmp_path / "grpo-8-n1", 8, "n1")
    left = {"grpo-7-n1", "grpo-8-n1", "grpo-5-n11", "grpo-5-n2", "grpo-x-n1", "other", "bin"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_ports_follow_from_the_job_and_two_jobs_begin_apart():
    first, second = node.candidates(7_000_001), node.candidates(7_000_002)
    assert len(set(first)) == len(first) == 8
    assert first[0] != second[0]
    assert all(20000 <= port < 30000 for port in (*first, *second))
    assert node.candidates(7_000_001) == first


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_the_head_says_where_it_is_and_leaves_nothing_but_the_ends_of_its_logs(job, number):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", node.candidates(5)[0]))
        taken.listen()
        process = start(job, "head", "--job-id", "5", "--cpus", "3", "--gpus", "2", "--object-store-bytes", "1000")
        wait_until((job / "job" / "ray-address").is_file, process)
    address = (job / "job" / "ray-address").read_text()
    assert address == f"127.0.0.1:{node.candidates(5)[1]}\n"  # the first port was taken
    [record] = records(job)
    for word in ("start", "--head", "--include-dashboard=false", "--node-ip-address=127.0.0.1", "--num-cpus=3",
                 "--num-gpus=2", "--object-store-memory=1000", "--min-worker-port=0", "--block"):  # fmt: skip
        assert word in record["arguments"]
    assert record["environment"] == {
        "TMPDIR": f"{job}/s/tmp", "VLLM_HOST_IP": "127.0.0.1", "XDG_CACHE_HOME": f"{job}/s/cache",
        "RAY_worker_niceness": "0",
    }  # fmt: skip
    assert (job / "s").stat().st_mode & 0o777 == 0o700
    process.send_signal(number)
    assert process.wait(timeout=60) == 0
    assert not (job / "s").exists()
    kept = (job / "job" / "logs" / "n1" / "worker-1.out").read_bytes()
    assert len(kept) == 1 << 20
    assert kept.endswith(b"the end")


def test_a_worker_joins_the_head(job):
    process = start(job, "worker", "--address", "10.0.0.1:23456")
    wait_until((job / "record").is_file, process)
    wait_until(lambda: (job / "record").read_text().endswith("\n"), process)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=60) == 0
    [record] = records(job)
    assert "--address=10.0.0.1:23456" in record["arguments"]
    assert "--head" not in record["arguments"]


def test_a_ray_that_ends_by_itself_is_a_failure(job):
    (job / "fake" / "ray" / "scripts" / "scripts.py").write_text("raise SystemExit(3)")
    process = start(job, "worker", "--address", "10.0.0.1:23456")
    assert process.wait(timeout=60) == 1
    assert not (job / "s").exists()
