import io
import json
import os

import pytest
import torch
from rich.console import Console

from grpo.errors import WorkerError
from grpo.matrix.canary import measure as module
from grpo.matrix.canary.disk import write_rate
from grpo.matrix.canary.measure import assemble, measure
from grpo.matrix.canary.rates import cpu_rates
from grpo.matrix.canary.show import canary_sheet
from grpo.matrix.judge.machine import Machine, check_canary
from grpo.matrix.show.sheet import sheet_table
from tests.support.matrix import CPU_PARTITION, canary, with_rates


@pytest.fixture
def small(monkeypatch):
    """Products and copies so small that a canary takes no time."""
    monkeypatch.setattr("grpo.matrix.canary.rates._CPU_SIDE", 32)
    monkeypatch.setattr("grpo.matrix.canary.rates._CPU_BYTES", 4096)
    monkeypatch.setattr("grpo.matrix.canary.disk._MOST_BYTES", 4096)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_one_process_on_a_cpu(small, tmp_path):
    found = measure(tmp_path / "canary.json", tmp_path, {})
    assert found["device"] == "cpu"
    (node,) = found["nodes"]
    assert node["host"]
    assert node["disk_write_mb_per_s"] > 0
    assert set(node["cpus"][0]) == {"threads", "float32_matmul_gflops", "memory_copy_gb_per_s"}
    assert found["nccl"]["transport"] == "unknown"
    json.dumps(found, allow_nan=False)
    assert list(tmp_path.iterdir()) == []
    assert check_canary(found, CPU_PARTITION).health == "unknown"


def test_rates_are_positive(small):
    assert min(cpu_rates().values()) > 0


def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_rate(tmp_path / "none")


def test_several_ranks_are_this_command_with_a_rank_each(small, tmp_path, monkeypatch):
    started = []

    class Process:
        returncode = 0

        def __init__(self, command, env, **_):
            started.append((command, env))

        def communicate(self, timeout):
            return "", None

        def kill(self):
            pass

        wait = kill

    monkeypatch.setattr(module.subprocess, "Popen", Process)
    environ = {"PATH": os.environ["PATH"], "SECRET_TOKEN": "hunter2", "SLURM_PROCID": "3"}
    assert measure(tmp_path / "c.json", tmp_path, environ, ranks=3) is None
    assert [env["RANK"] for _, env in started] == ["0", "1", "2"]
    assert len({env["MASTER_PORT"] for _, env in started}) == 1
    assert all("SECRET_TOKEN" not in env and "SLURM_PROCID" not in env for _, env in started)
    assert started[0][0][2:4] == ["grpo", "canary"]
    monkeypatch.setattr(Process, "returncode", 1)
    with pytest.raises(WorkerError, match="canary rank 0 ended with 1"):
        measure(tmp_path / "c.json", tmp_path, environ, ranks=3)


def test_of_what_ranks_measured_together_the_slowest_counts():
    def rank(host, node, pairs, **more):
        return {"host": host, "rates": {}, "node": node, "pairs": pairs, **more}

    found = assemble(
        [
            rank("a", 300.0, {"a|b": 40.0}, disk=500.0),
            rank("a", 310.0, {"a|b": 38.0}),
            rank("b", None, {"a|b": 39.0}),
        ],
        "cuda",
        {"transport": "ib"},
    )
    assert found["nodes"][0]["all_reduce_node_gb_per_s"] == 300.0
    assert found["nodes"][0]["disk_write_mb_per_s"] == 500.0
    assert "all_reduce_node_gb_per_s" not in found["nodes"][1]
    assert found["pairs"] == [{"hosts": ["a", "b"], "all_reduce_pair_gb_per_s": 38.0}]


def test_a_table_of_it():
    seen = {"seconds": 9.0, **canary(hosts=("a", "b"))}
    seen["nodes"][0]["gpus"][2]["throttle"] = ["power cap"]
    partition = with_rates(bf16_matmul_tflops=790.0)
    sheet = canary_sheet(seen, partition, Machine("good", ()))
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(sheet_table(sheet))
    text = console.file.getvalue()
    assert "canary of 2 nodes in 9 s" in text
    assert "a GPU 2 was held back: power cap" in text
    assert "790" in text
    assert "a and b" in text
