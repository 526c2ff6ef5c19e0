import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo import cli
from grpo.hub import offline
from grpo.trainer.stopping import Stopping
from tests.support.quick_run import QUICK, without_reports
from tests.support.small_run import SMALL


@pytest.fixture
def run(monkeypatch, capsys):
    # It changes the environment of the whole process, other tests' included.
    monkeypatch.setattr(offline, "go_offline", lambda: None)

    def invoke(*arguments):
        monkeypatch.setattr(sys, "argv", ["grpo", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        captured = capsys.readouterr()
        return leaving.value.code, captured.out, captured.err

    return invoke


def test_config_prints_the_whole_resolved_recipe(run):
    code, out, _ = run("config", "tiny", "grpo.seed=7")
    assert code == 0
    assert "\n  seed: 7\n" in out


def test_config_says_where_values_come_from(run):
    _, out, _ = run("config", "tiny", "grpo.seed=7", "--set-by")
    (line,) = [line for line in out.splitlines() if line.startswith("grpo.seed")]
    assert "override" in line


def test_a_step_is_shown_against_a_reference(run, tmp_path):
    reference = Path(__file__).parents[2] / "matrices" / "references" / "h100-80g" / "8b-megatron.yaml"
    small = [*SMALL, "grpo.max_num_steps=2", "grpo.val_period=0", "checkpointing.enabled=false"]
    code, out, _ = run("train", "tiny", *small, f"logger.log_dir={tmp_path / 'run'}", "--reference", reference)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("step 2/2")]
    assert re.search(r"  median step \S+ s \(112, -1\d\d %\): generation -\d", line), line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reference", "nowhere.yaml"], "--reference nowhere.yaml: there is no such file"),
        (["--reference-warmup", "3"], "--reference-warmup is for --reference FILE"),
    ],
)
def test_a_reference_that_cannot_be_is_refused(run, options, message):
    code, _, err = run("train", "tiny", *options)
    assert code == 2
    assert message in err


def test_the_recipe_may_be_given_as_an_option(run):
    first = run("config", "--config", "examples/configs/grpo_math_8B.yaml", "cluster.num_nodes=1")
    second = run("config", "grpo_math_8b", "cluster.num_nodes=1")
    assert first[1] == second[1]
    assert "is read as the shipped recipe grpo_math_8b" in first[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config"], "which recipe?"),
        (["config", "grpo.seed=7"], "which recipe?"),
        (["config", "tiny", "grpo.sed=7"], "did you mean grpo.seed?"),
        (["train", "nowhere.yaml"], "nowhere.yaml"),
        (["train", "grpo_math_8b"], "run: grpo fetch grpo_math_8b"),
        (["train", "tiny", "policy.model_name=tiny-digit"], "Did you mean the shipped model tiny-digits?"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, arguments, message, monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    code, _, err = run(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("given", "used"), [(None, "2000"), ("7", "7")])
def test_waiting_threads_spin_briefly_unless_told_otherwise(run, monkeypatch, given, used):
    monkeypatch.setenv("GOMP_SPINCOUNT", given or "")
    if given is None:
        monkeypatch.delenv("GOMP_SPINCOUNT")
    run("recipes")
    assert os.environ["GOMP_SPINCOUNT"] == used


def test_recipes_and_models_are_listed(run):
    assert {"tiny", "grpo_math_70b_megatron"} <= set(run("recipes")[1].split())
    assert "tiny-digits" in run("recipes", "--models")[1].split()


def test_a_recipe_of_shipped_parts_has_nothing_to_fetch(run):
    assert run("fetch", "tiny")[1].startswith("nothing to fetch")


def test_training_ends_with_the_report_and_one_line(run, tmp_path):
    overrides = [*SMALL, f"logger.log_dir={tmp_path / 'run'}", "grpo.max_num_steps=3"]
    code, out, err = run("train", "tiny", *overrides)
    assert (code, err) == (0, "")
    *_, report, summary = out.splitlines()
    assert report == f"report: {tmp_path / 'run' / 'report.html'}"
    assert summary.startswith("accuracy 0.")
    assert "(chance 0.1" in summary
    assert " after 3 steps in " in summary


def test_a_run_that_has_not_learned_exits_1(run, tmp_path):
    overrides = [*SMALL, f"logger.log_dir={tmp_path / 'run'}", "grpo.max_num_steps=3"]
    code, _, err = run("train", "tiny", "--quiet", "--require-accuracy", "0.9", *overrides)
    assert code == 1
    assert "not learned: --require-accuracy 0.9" in err


@pytest.fixture
def own_signals():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 85), (signal.SIGINT, 130)])
@pytest.mark.usefixtures("own_signals")
def test_a_run_that_is_stopped_says_by_its_exit_code_what_to_do(run, tmp_path, monkeypatch, number, code):
    from grpo.rollout.on_demand import OnDemandSource

    real = OnDemandSource.next_rollout

    def stopped(self, timer):
        rollout = real(self, timer)
        os.kill(os.getpid(), number)
        return rollout

    overrides = [*SMALL, *QUICK, f"logger.log_dir={tmp_path / 'run'}", "grpo.max_num_steps=2"]
    with without_reports():
        monkeypatch.setattr(OnDemandSource, "next_rollout", stopped)
        # Nothing is to be saved before the first step, which would be given up.
        monkeypatch.setattr(Stopping, "_latest_save", lambda _: math.inf)
        first, out, _ = run("train", "tiny", *overrides)
        monkeypatch.undo()
        monkeypatch.setattr(offline, "go_offline", lambda: None)
        second, _, _ = run("train", "tiny", *overrides)
    assert (first, second) == (code, 0)
    assert f"stopped by {number.name} and saved; the same command without --fresh resumes" in out
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 85), (signal.SIGINT, 130)])
@pytest.mark.usefixtures("own_signals")
def test_a_run_that_is_stopped_while_it_starts(run, tmp_path, monkeypatch, number, code):
    from grpo.trainer import run as module

    monkeypatch.setattr(module, "assembled", lambda *_, **__: os.kill(os.getpid(), number))
    left, _, err = run("train", "tiny", *SMALL, *QUICK, f"logger.log_dir={tmp_path / 'run'}")
    assert left == code
    assert f"stopped by {number.name} before the first step; nothing was trained" in err
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["exit_code"] == code


def test_the_exit_codes_are_in_the_help(run):
    out = " ".join(run("train", "--help")[1].split())
    assert "85 stopped and saved, start the same command again" in out
    assert "checkpointing.checkpoint_must_save_by" in out


def test_the_time_limit_counts_from_the_start_of_the_process():
    import psutil

    age = time.time() - psutil.Process().create_time()
    assert time.monotonic() - cli._start_of_process() == pytest.approx(age, abs=2)


UNANSWERED = """
import threading
from pathlib import Path
import torch
from grpo import cli
from grpo.checkpoint import files, pieces, saver, shards
from grpo.errors import CheckpointError

writing = threading.Event()

def write_file(*_, **__):
    writing.set()
    threading.Event().wait()

def app():
    plan = shards.plan_shards(pieces.whole_pieces({"w": torch.zeros(1)}))
    saver._started(lambda: shards.write_shards(Path(), plan))
    assert writing.wait(30)
    raise CheckpointError("a save did not end")

files.write_file, cli.app, cli._LAST_SECONDS = write_file, app, 0.1
cli.main()
"""


def test_a_disk_that_does_not_answer_keeps_no_process_from_ending():
    done = subprocess.run([sys.executable, "-c", UNANSWERED], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "error: a save did not end" in done.stderr
    assert "write_file" in done.stderr
