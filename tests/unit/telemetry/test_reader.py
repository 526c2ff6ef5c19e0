import json

import pytest

from grpo.errors import TelemetryError
from grpo.telemetry.reader import read_run
from tests.support.synthetic_run import write_synthetic_run


@pytest.fixture
def run(tmp_path):
    return write_synthetic_run(tmp_path / "run", steps=3)


def test_a_run_is_read_while_it_is_written(tmp_path):
    path = write_synthetic_run(tmp_path / "run", steps=12, outcome="running")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "step": 13, "tr')
    read = read_run(path)
    assert read.steps == list(range(1, 13))
    assert read.series("validation/accuracy")[0] == [10]
    assert read.column("validation/accuracy").count(None) == 11
    assert read.metric_names[0] == "timing/total"
    assert read.state == "running"


def test_a_run_whose_process_is_gone_was_killed(run):
    manifest = json.loads((run / "manifest.json").read_text())
    for change, state in (({"process_started": 0.0}, "killed"), ({"host": "elsewhere"}, "running")):
        (run / "manifest.json").write_text(json.dumps({**manifest, "state": "running", **change}))
        assert read_run(run).state == state


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(TelemetryError, match=r"is no run directory of grpo: it has no manifest\.json"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("manifest.json", "{", r"manifest\.json: not JSON"),
        ("manifest.json", "[]", r"manifest\.json: not a JSON object but list"),
        ("manifest.json", '{"schema_version": 1}', r"manifest\.json: run_id: Field required"),
        ("manifest.json", '{"schema_version": 99}', r"schema_version 99, newer than 1.*update grpo"),
        ("nodes.json", '{"nodes": []}', r"nodes\.json: schema_version is None"),
        ("environment.json", '{"schema_version": 2}', r"environment\.json: written with schema_version 2"),
        ("config.yaml", "# schema_version: 2\na: 1\n", r"config\.yaml: written with schema_version 2"),
        ("config.yaml", "a: [", r"config\.yaml: not YAML"),
        ("config.yaml", "a", r"config\.yaml: not a YAML mapping but str"),
        ("metrics.jsonl", '{"schema_version": 2, "step": 1}\n', r"metrics\.jsonl:1: written with schema_version 2"),
    ],
)
def test_a_file_that_is_wrong_or_newer_is_named(run, name, text, message):
    (run / name).write_text(text)
    with pytest.raises(TelemetryError, match=message):
        read_run(run)


def test_keys_of_a_later_minor_version_are_left_aside(run):
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "mood": "good"}))
    assert read_run(run).manifest.name == "synthetic"


def test_a_manifest_alone_is_a_run(run):
    for path in run.iterdir():
        if path.is_file() and path.name != "manifest.json":
            path.unlink()
    read = read_run(run)
    assert (read.metrics, read.events, read.config, read.nodes, read.environment) == ([], [], {}, [], {})
