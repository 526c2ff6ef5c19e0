import json
import subprocess

import pytest

from grpo.config.schema import Cluster
from grpo.errors import ConfigError, TelemetryError
from grpo.telemetry.reader import read_run
from grpo.telemetry.run_directory import RunDirectory
from grpo.trainer import canary as module
from grpo.trainer.canary import keep_canary


@pytest.fixture
def run(tmp_path):
    with RunDirectory.open(
        tmp_path / "run", "new", name="r", config_yaml="a: 1\n", command=["grpo"], facts={}, environ={}
    ) as opened:
        yield opened


@pytest.fixture
def measured(monkeypatch):
    """Pretends to measure; what was asked for."""
    asked = []

    def pretend(command, env, **_):
        asked.append((command, env))
        out = command[command.index("--out") + 1]
        with open(out, "w") as file:  # noqa: PTH123
            json.dump({"schema_version": 1, "nodes": [{"host": "a"}]}, file)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(module.subprocess, "run", pretend)
    return asked


@pytest.mark.parametrize(
    ("mode", "environ", "expected"),
    [
        ("auto", {}, 0), ("auto", {"SLURM_JOB_ID": "1"}, 1), ("on", {}, 1), ("off", {"SLURM_JOB_ID": "1"}, 0),
    ],
)  # fmt: skip
def test_when_it_is_measured(run, measured, mode, environ, expected):
    assert keep_canary(Cluster(canary=mode), run, environ) is None
    assert len(measured) == expected
    assert bool(read_run(run.path).canary) == bool(expected)


def test_it_sees_neither_secrets_nor_the_rank_of_a_launcher(run, measured):
    keep_canary(
        Cluster(canary="on"), run, {"PATH": "/bin", "WANDB_API_KEY": "hunter2", "RANK": "3", "SLURM_PROCID": "3"}
    )
    assert measured[0][1] == {"PATH": "/bin"}


def test_one_that_was_measured_already_is_kept(run, measured, tmp_path):
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"schema_version": 1, "nodes": [{"host": "a"}, {"host": "b"}]}))
    assert keep_canary(Cluster(canary="on", canary_file=str(file)), run, {}) is None
    assert [node["host"] for node in read_run(run.path).canary["nodes"]] == ["a", "b"]
    assert not measured


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": 1}'])
def test_what_is_no_canary_is_refused(run, tmp_path, content):
    file = tmp_path / "job.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"cluster.canary_file=.*not a canary.json"):
        keep_canary(Cluster(canary_file=str(file)), run, {})
    with pytest.raises(ConfigError, match=r"not a canary\.json"):
        keep_canary(Cluster(canary_file=str(tmp_path / "none")), run, {})


def test_a_newer_one_is_refused(run, tmp_path):
    file = tmp_path / "job.json"
    file.write_text('{"schema_version": 2, "nodes": []}')
    with pytest.raises(TelemetryError, match="newer than 1"):
        keep_canary(Cluster(canary_file=str(file)), run, {})


def test_a_canary_that_fails_or_hangs_stops_no_run_and_is_told(run, monkeypatch):
    def failing(command, **_):
        return subprocess.CompletedProcess(command, 3, "", "no CUDA")

    def hanging(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    for pretend, told in ((failing, "ended with 3: no CUDA"), (hanging, "did not end within 150 s")):
        monkeypatch.setattr(module.subprocess, "run", pretend)
        assert told in keep_canary(Cluster(canary="on"), run, {})
        assert told in read_run(run.path).events[-1]["problem"]
    assert read_run(run.path).canary == {}
