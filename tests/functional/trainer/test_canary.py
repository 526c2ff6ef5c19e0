"""The canary for real: its own processes, one of them and several, and a run that keeps what they measured."""

import json
import os
import subprocess
import sys

from grpo.telemetry.environment import lean_environment
from grpo.telemetry.reader import read_run
from tests.support.small_run import run_small


def test_a_run_keeps_its_canary(tmp_path):
    run_small(tmp_path / "run", "cluster.canary=on", "grpo.max_num_steps=1")
    run = read_run(tmp_path / "run")
    assert [event["problem"] for event in run.events if event["kind"] == "canary"] == [None]
    (node,) = run.canary["nodes"]
    assert node["host"] == run.nodes[0]["host"]
    assert node["cpus"][0]["float32_matmul_gflops"] > 0
    assert run.canary["seconds"] < 20


def test_several_ranks_measure_the_links_between_them(tmp_path):
    out = tmp_path / "canary.json"
    command = [sys.executable, "-m", "grpo", "canary", "--out", str(out), "--ranks", "2", "--format", "json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=lean_environment(os.environ)
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert json.loads(done.stdout) == found
    assert len(found["nodes"][0]["cpus"]) == 2
    assert found["nodes"][0]["all_reduce_node_gb_per_s"] > 0
