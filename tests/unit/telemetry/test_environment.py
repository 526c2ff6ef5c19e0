import platform

import torch

from grpo.telemetry import environment


def test_versions_and_packages_are_named():
    told = environment.describe_environment()
    assert told["python"] == platform.python_version()
    assert told["stack"]["torch"] == told["packages"]["torch"]
    assert told["packages"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert told["cuda"] == torch.version.cuda
    assert "pydantic" in told["packages"]


def test_a_node_is_described_with_its_gpus(monkeypatch):
    lines = "NVIDIA H200, 143771, GPU-1, 570.86, Disabled\nNVIDIA H200, 143771, GPU-2, 570.86, Disabled\n"
    monkeypatch.setattr(environment.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(environment, "_output", lambda command: lines)
    node = environment.describe_node()
    assert node["cpus_usable"] >= 1
    assert node["memory_gib"] > 0
    assert [gpu["uuid"] for gpu in node["gpus"]] == ["GPU-1", "GPU-2"]
    assert node["gpus"][0] == {
        "name": "NVIDIA H200", "memory_mib": "143771", "uuid": "GPU-1", "driver": "570.86", "mig": "Disabled"
    }  # fmt: skip


def test_a_command_that_fails_or_is_missing_tells_nothing():
    assert environment._output(["false"]) is None
    assert environment._output(["no-such-command-here"]) is None
    assert environment._output(["echo", "x"]) == "x\n"
