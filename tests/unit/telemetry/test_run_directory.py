import json
import logging
import math
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml

from grpo.errors import TelemetryError
from grpo.telemetry import run_directory
from grpo.telemetry.journal import read_journal
from grpo.telemetry.reader import read_run
from grpo.telemetry.run_directory import RunDirectory

SECRET = "hf_planted0secret"  # noqa: S105
PASSWORD = "pw-on-the-command-line"  # noqa: S105


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Listing the installed packages is the slow part and has its own test."""
    monkeypatch.setattr(run_directory, "describe_environment", lambda: {"python": "3", "packages": {}})


def start(path, mode="new", **options):
    options = {"name": "test", "config_yaml": "grpo:\n  seed: 1\n", "command": ["grpo", "train", "tiny"], **options}
    return RunDirectory.open(path, mode, **options)


def test_every_file_has_a_schema_version(tmp_path):
    with start(tmp_path / "run") as run:
        run.write_metrics(1, {"train/reward": 0.5})
        run.write_sample(1, prompt="p", completion="c")
        run.write_ranks(1, ["a", "b"], {"timing/policy_training": [0.5, 0.25]})
        run.write_lengths(1, [7, 4])
        run.start_log()
    files = {path.name for path in run.path.rglob("*") if path.is_file()}
    journals = {"metrics.jsonl", "events.jsonl", "samples.jsonl", "ranks.jsonl", "lengths.jsonl"}
    written = {"manifest.json", "environment.json", "nodes.json", *journals}
    assert files == written | {"config.yaml", ".lock", "rank-0.log"}
    for name in written:
        text = (run.path / name).read_text()
        for value in [text] if name.endswith(".json") else text.splitlines():
            assert json.loads(value)["schema_version"] == 1
    assert (run.path / "config.yaml").read_text() == "# schema_version: 1\ngrpo:\n  seed: 1\n"
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o755


def test_the_seconds_of_ranks_are_a_line_a_step(tmp_path):
    with start(tmp_path / "run") as run:
        run.write_ranks(3, ["a", "b"], {"timing/logprobs": [1.5, 2.5]})
    (line,) = read_journal(run.path / "ranks.jsonl")
    assert line == {"step": 3, "hosts": ["a", "b"], "timing/logprobs": [1.5, 2.5]}


def test_what_is_written_is_read_back(tmp_path):
    with start(tmp_path / "run", facts={"chance": 0.2}) as run:
        run.write_metrics(1, {"a": np.float32(0.5), "b": math.nan, "c": 3, "d": None, "e": -math.inf})
        run.write_metrics(2, {"a": 0.25})
        run.write_event("checkpoint", step=2, path="x")
        run.add_facts(parameters=7)
    read = read_run(run.path)
    assert read.steps == [1, 2]
    assert read.column("a") == [0.5, 0.25]
    assert math.isnan(read.metrics[0]["b"])
    assert read.metrics[0]["c"] == 3
    assert read.column("d") == [None, None]
    assert read.series("e") == ([1], [-math.inf])
    assert read.manifest.facts == {"chance": 0.2, "parameters": 7}
    assert read.config == {"grpo": {"seed": 1}}
    assert [event["kind"] for event in read.events] == ["started", "checkpoint", "ended"]
    assert (read.manifest.state, read.manifest.exit_code, read.manifest.last_step) == ("completed", 0, 2)


@pytest.mark.parametrize("value", [torch.tensor(1.0), "1", [1.0]])
def test_a_metric_that_is_no_number_is_named(tmp_path, value):
    with start(tmp_path / "run") as run:
        with pytest.raises(TypeError, match="metric 'train/loss' is a"):
            run.write_metrics(1, {"train/loss": value})
        run.write_metrics(1, {})
        with pytest.raises(ValueError, match="step 1 after those of step 1"):
            run.write_metrics(1, {})


@pytest.mark.parametrize(
    ("error", "state", "code", "reason"),
    [
        (OSError("boom"), "failed", 1, "OSError: boom"),
        (TelemetryError("boom"), "failed", 2, "TelemetryError: boom"),
        (KeyboardInterrupt(), "stopped", 130, "interrupted"),
        (KeyboardInterrupt("SIGINT"), "stopped", 130, "SIGINT"),
    ],
)
def test_an_exception_is_the_outcome(tmp_path, error, state, code, reason):
    with pytest.raises(type(error)), start(tmp_path / "run") as run:
        raise error
    record = read_run(run.path).manifest
    assert (record.state, record.exit_code) == (state, code)
    assert record.reason == reason


def test_the_first_outcome_counts(tmp_path):
    with pytest.raises(SystemExit), start(tmp_path / "run") as run:  # noqa: PT012
        run.finish("stopped", reason="SIGTERM", exit_code=85)
        raise SystemExit(85)
    assert read_run(run.path).manifest.state == "stopped"


def test_new_refuses_a_run_and_says_what_to_do(tmp_path):
    start(tmp_path / "run").finish("completed")
    with pytest.raises(TelemetryError, match=r"holds a run already: resume it, .*fresh, .*logger\.log_dir"):
        start(tmp_path / "run")


def test_fresh_sets_earlier_runs_aside(tmp_path):
    ids = []
    for _ in range(3):
        run = start(tmp_path / "run", "fresh")
        ids.append(run.run_id)
        run.finish("completed")
    assert [read_run(tmp_path / name).manifest.run_id for name in ("run.1", "run.2", "run")] == ids


@pytest.mark.parametrize("mode", ["new", "fresh", "resume"])
def test_a_folder_of_something_else_is_never_touched(tmp_path, mode):
    (tmp_path / "thesis.tex").write_text("years of work")
    options = {"resume_step": 1} if mode == "resume" else {}
    with pytest.raises(TelemetryError, match=r"has 'thesis\.tex' and no manifest\.json"):
        start(tmp_path, mode, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_places_that_cannot_be_used_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TelemetryError, match="file is a file"):
        start(tmp_path / "file")
    with pytest.raises(TelemetryError, match=r"file/run.*(is a file|cannot)"):
        start(tmp_path / "file" / "run")
    with pytest.raises(TelemetryError, match="no run in it"):
        start(tmp_path / "none", "resume", resume_step=1)


def test_an_empty_folder_and_one_left_by_a_kill_at_the_start_are_used(tmp_path):
    (tmp_path / ".lock").write_text("")
    (tmp_path / "manifest.json.tmp").write_text("{")
    start(tmp_path).finish("completed")
    assert read_run(tmp_path).state == "completed"


def test_resume_goes_on_after_the_checkpoint(tmp_path):
    with start(tmp_path / "run", facts={"chance": 0.2}) as run:
        for step in range(1, 6):
            run.write_metrics(step, {"x": float(step)})
            run.write_sample(step, prompt="p")
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "st')
    changed = {"config_yaml": "grpo:\n  seed: 2\n", "facts": {"max_steps": 9}}
    with start(run.path, "resume", resume_step=3, **changed) as again:
        assert again.last_step == 3
        again.write_metrics(4, {"x": 40.0})
    read = read_run(run.path)
    assert read.manifest.run_id == run.run_id
    assert read.column("x") == [1.0, 2.0, 3.0, 40.0]
    assert [sample["step"] for sample in read.samples] == [1, 2, 3]
    assert read.manifest.facts == {"chance": 0.2, "max_steps": 9}
    assert [resume.step for resume in read.manifest.resumes] == [3]
    resumed = next(event for event in read.events if event["kind"] == "resumed")
    assert (resumed["discarded_metrics"], resumed["discarded_samples"], resumed["step"]) == (3, 2, 3)
    assert yaml.safe_load((run.path / resumed["earlier_config"]).read_text()) == {"grpo": {"seed": 1}}
    assert read.config == {"grpo": {"seed": 2}}


def test_two_runs_cannot_share_a_directory(tmp_path):
    with start(tmp_path / "run") as run:
        for mode, options in (("fresh", {}), ("resume", {"resume_step": 0})):
            with pytest.raises(TelemetryError, match=r"another run writes to .*run \(process \d+ on .+\)"):
                start(run.path, mode, **options)
        run.write_metrics(1, {"x": 1.0})
    assert read_run(tmp_path / "run").column("x") == [1.0]
    assert not (tmp_path / "run.1").exists()


KILLED = """
import os, sys
from grpo.telemetry import run_directory
run_directory.describe_environment = dict
run = run_directory.RunDirectory.open(sys.argv[1], "new", name="n", config_yaml="a: 1", command=["x"])
run.write_metrics(1, {"x": 1.0})
if os.fork() == 0:  # like a verifier's pool: outlives its parent until the pipe closes
    sys.stdin.read()
    os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_run_leaves_its_lines_and_no_lock(tmp_path):
    path = tmp_path / "run"
    command = [sys.executable, "-c", KILLED, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "ready\n"
        assert read_run(path).state == "running"
        with pytest.raises(TelemetryError, match=rf"process {process.pid}"):
            start(path, "resume", resume_step=1)
        process.kill()
        process.wait(timeout=30)
        assert read_run(path).state == "killed"
        with start(path, "resume", resume_step=1) as run:
            run.write_metrics(2, {"x": 2.0})
    assert read_run(path).column("x") == [1.0, 2.0]


def test_a_run_goes_on_after_a_torn_event(tmp_path):
    with start(tmp_path / "run") as run:
        run.write_metrics(1, {"x": 1.0})
    events = tmp_path / "run" / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-9])
    with start(tmp_path / "run", "resume", resume_step=1) as run:
        assert run.last_step == 1
    assert [event["kind"] for event in read_run(tmp_path / "run").events] == ["started", "resumed", "ended"]


def test_the_line_of_the_resumed_step_may_be_missing(tmp_path):
    with start(tmp_path / "run") as run:
        run.write_metrics(1, {"x": 1.0})
    with start(tmp_path / "run", "resume", resume_step=2) as run:
        assert run.last_step == 1
        run.write_metrics(2, {"x": 2.0})
    assert read_run(tmp_path / "run").column("x") == [1.0, 2.0]


def test_no_secret_reaches_any_file(tmp_path):
    environ = {"HF_TOKEN": SECRET, "MY_API_KEY": SECRET + "2", "DB_PASSWORD": SECRET + "3", "X_SECRET": SECRET + "4"}
    options = {
        "environ": environ,
        "name": f"run {SECRET}",
        "command": ["grpo", "train", f"--hub-token={PASSWORD}", f"env.x.kwargs.api_key={PASSWORD}", f"n={SECRET}2"],
        "config_yaml": f"env:\n  x:\n    kwargs: {{api_key: {PASSWORD}, url: 'https://{SECRET}@hub'}}\n",
        "facts": {"model": f"https://{SECRET}3@host", "token": "short"},
    }
    with pytest.raises(ValueError, match=SECRET), start(tmp_path / "run", **options) as run:  # noqa: PT012
        run.start_log()
        logging.getLogger("grpo.hub").warning("header %s", {"Authorization": SECRET})
        try:
            raise ValueError(PASSWORD)  # noqa: TRY301
        except ValueError:
            logging.getLogger("grpo").exception("failed")
        run.write_metrics(1, {"x": 1.0})
        run.write_sample(1, prompt=SECRET, completion=f"a{PASSWORD}b")
        run.write_event("warning", message=SECRET + "4", details={"password": "short"})
        run.write_nodes([{"host": SECRET}])
        run.add_facts(device=SECRET)
        raise ValueError(SECRET)
    texts = {path.name: path.read_text() for path in run.path.rglob("*") if path.is_file()}
    assert len(texts) >= 8
    assert [name for name, text in texts.items() if SECRET in text or PASSWORD in text or "short" in text] == []
    assert "[removed]" in texts["rank-0.log"]


def test_the_log_ends_with_the_run_and_is_capped(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo.telemetry.logs.MAX_BYTES", 2000)
    with start(tmp_path / "run") as run:
        path = run.start_log(3)
        for number in range(200):
            logging.getLogger("grpo.worker").info("line %d", number)
    logging.getLogger("grpo.worker").warning("after the end")
    assert path.name == "rank-3.log"
    assert "line 199" in path.read_text()
    assert "after the end" not in path.read_text()
    files = list(path.parent.iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size <= 2000 for file in files)


def test_a_start_that_failed_half_way_leaves_a_folder_that_can_be_used(tmp_path, monkeypatch):
    def fails():
        raise RuntimeError

    with monkeypatch.context() as broken:
        broken.setattr(run_directory, "grpo_version", fails)
        with pytest.raises(RuntimeError):
            start(tmp_path / "run")
    start(tmp_path / "run").finish("completed")
    assert read_run(tmp_path / "run").state == "completed"


def test_logs_of_something_else_are_not_taken_for_a_start_that_failed(tmp_path):
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "logs" / "access.log").write_text("")
    with pytest.raises(TelemetryError, match="it has 'logs'"):
        start(tmp_path / "run")
