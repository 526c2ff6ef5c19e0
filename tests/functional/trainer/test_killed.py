"""`grpo train` that is killed leaves no process: no worker, no engine, nothing of Ray."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.functional.workers.groups.conftest import gone, told
from tests.support.small_run import SMALL

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("ray-own")]
ROOT = Path(__file__).parents[3]


def wait_for_a_step(run, process):
    """Until the run has written the metrics of one."""
    metrics, ends = run / "metrics.jsonl", time.monotonic() + 200
    while not metrics.is_file() or '"step": 1,' not in metrics.read_text():
        assert process.poll() is None, "the run has ended"
        assert time.monotonic() < ends, "no step in time"
        time.sleep(0.05)


@pytest.mark.parametrize("backend", ["hf", pytest.param("vllm", marks=pytest.mark.nightly)])
def test_a_killed_run_leaves_no_process(tmp_path, backend):
    overrides = [
        *SMALL, "grpo.max_num_steps=1000000", "grpo.max_num_epochs=1000000", "cluster.launcher=ray",
        "cluster.cpu_ranks=2", f"policy.generation.backend={backend}", f"logger.log_dir={tmp_path}/run",
    ]  # fmt: skip
    command = [sys.executable, "-m", "grpo", "train", "tiny", *overrides]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for_a_step(tmp_path / "run", process)
            started = psutil.Process(process.pid).children(recursive=True)
            names = told(started, psutil.Process.name)
            assert "raylet" in names
            assert sum(name.startswith("ray::") for name in names) >= 3, names  # two ranks and the engine
        finally:
            process.kill()
    assert gone([each.pid for each in started])
