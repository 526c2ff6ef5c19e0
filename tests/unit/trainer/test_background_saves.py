"""Runs whose checkpoints are written while they train on."""

import json
import os
import signal
import threading

import pytest

from grpo.checkpoint import rank_state
from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.saver import Saver
from grpo.errors import CheckpointError
from grpo.telemetry.reader import read_run
from grpo.trainer import loop
from tests.support.small_run import run_small

IN_BACKGROUND = ("checkpointing.async_save=true", "checkpointing.keep_latest=9")


def lines(directory):
    return [json.loads(text) for text in (directory / "metrics.jsonl").read_text().splitlines()]


def numbers(directory):
    clock = ("timing/", "performance/", "memory/")
    return [{name: each for name, each in line.items() if not name.startswith(clock)} for line in lines(directory)]


def saved_steps(directory):
    manager = CheckpointManager(
        directory / "checkpoints", keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )
    return [info.step for info in manager.list() if info.problem is None]


def events(directory, kind):
    return [event for event in read_run(directory).events if event["kind"] == kind]


def test_it_is_the_run_that_saves_at_once_and_resumes_to_the_bit(tmp_path):
    run_small(tmp_path / "at once")
    run_small(tmp_path / "beside", *IN_BACKGROUND, "grpo.max_num_steps=3")
    run_small(tmp_path / "beside", *IN_BACKGROUND)
    assert numbers(tmp_path / "beside") == numbers(tmp_path / "at once")
    assert saved_steps(tmp_path / "beside") == [2, 3, 4, 6]
    told = events(tmp_path / "beside", "checkpoint")
    assert [event["step"] for event in told] == [2, 3, 4, 6]
    assert all(event["in_background"] and event["bytes"] > 10_000 for event in told)
    assert [event["step"] for event in events(tmp_path / "beside", "checkpoint_loaded")] == [3]
    *_, last = lines(tmp_path / "beside")
    assert last["timing/checkpoint/staging"] > 0


def test_without_the_optimizer_adam_begins_anew_which_is_said(tmp_path):
    run_small(tmp_path / "run", "grpo.max_num_steps=3")
    run_small(tmp_path / "run", "grpo.max_num_steps=4", "checkpointing.load_optimizer=false")
    assert events(tmp_path / "run", "checkpoint_loaded")[0]["optimizer"] is False
    from grpo.checkpoint.manifest import read_manifest
    from grpo.checkpoint.stored import read_shards

    path = tmp_path / "run" / "checkpoints" / "step_4"
    stored = read_shards(path, read_manifest(path).tensors)
    assert {float(each) for name, each in stored.items() if name.endswith(".step")} == {1.0}
    rates = [line["train/learning_rate"] for line in lines(tmp_path / "run")[1:]]
    assert rates == pytest.approx([0.0001, 0.0002, 0.0003, 0.0004]), "the warm-up goes on"


class Blocked:
    """Writing of one step begins and does not end before `released`."""

    def __init__(self, patch, fail=None):
        self.released, self.reached = threading.Event(), threading.Event()
        real = rank_state.write_shards

        def write(*arguments, **keywords):
            self.reached.set()
            assert self.released.wait(30)
            if fail is not None:
                raise fail
            return real(*arguments, **keywords)

        patch.setattr(rank_state, "write_shards", write)


def at_step(patch, number, action):
    real = loop.Trainer._step

    def step(self, step):
        if step == number:
            action()
        return real(self, step)

    patch.setattr(loop.Trainer, "_step", step)


def test_a_failed_write_ends_the_run_at_the_next_step(tmp_path, monkeypatch):
    blocked = Blocked(monkeypatch, fail=OSError(28, "No space left on device"))
    pending = []
    real = Saver.write
    monkeypatch.setattr(Saver, "write", lambda saver, *rest: (real(saver, *rest), pending.append(saver._pending))[0])

    def fail_now():
        blocked.released.set()
        pending[0].exception(timeout=30)

    at_step(monkeypatch, 3, fail_now)
    with pytest.raises(CheckpointError, match=r"step_2: .*No space left"):
        run_small(tmp_path / "run", *IN_BACKGROUND, "checkpointing.save_period=2")
    assert [line["step"] for line in lines(tmp_path / "run")] == [0, 1, 2]
    assert read_run(tmp_path / "run").manifest.state == "failed"


def test_an_error_waits_for_the_save_under_way(tmp_path, monkeypatch):
    blocked = Blocked(monkeypatch)

    def fail():
        threading.Timer(0.05, blocked.released.set).start()
        raise ArithmeticError("something else")

    at_step(monkeypatch, 4, fail)
    with pytest.raises(ArithmeticError, match="something else"):
        run_small(tmp_path / "run", *IN_BACKGROUND, "checkpointing.save_period=3")
    assert saved_steps(tmp_path / "run") == [3]
    assert [event["step"] for event in events(tmp_path / "run", "checkpoint")] == [3]


def test_an_error_is_not_hidden_by_that_of_the_save(tmp_path, monkeypatch):
    blocked = Blocked(monkeypatch, fail=OSError(5, "Input/output error"))

    def fail():
        threading.Timer(0.05, blocked.released.set).start()
        raise ArithmeticError("something else")

    at_step(monkeypatch, 4, fail)
    with pytest.raises(ArithmeticError, match="something else") as error:
        run_small(tmp_path / "run", *IN_BACKGROUND, "checkpointing.save_period=3")
    assert "Input/output error" in "\n".join(error.value.__notes__)


def test_a_signal_waits_for_the_save_under_way_and_saves_its_own_step(tmp_path, monkeypatch):
    blocked = Blocked(monkeypatch)

    def stop():
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Timer(0.05, blocked.released.set).start()

    at_step(monkeypatch, 4, stop)
    finished = run_small(tmp_path / "run", *IN_BACKGROUND, "checkpointing.save_period=3")
    assert (finished.outcome.reason, finished.outcome.steps, finished.outcome.saved) == ("stopped", 4, True)
    assert saved_steps(tmp_path / "run") == [3, 4]


def test_the_next_save_waits_for_the_one_before(tmp_path, monkeypatch):
    blocked = Blocked(monkeypatch)
    at_step(monkeypatch, 4, lambda: threading.Timer(0.05, blocked.released.set).start())
    run_small(tmp_path / "run", *IN_BACKGROUND, "checkpointing.save_period=2", "grpo.max_num_steps=5")
    assert saved_steps(tmp_path / "run") == [2, 4, 5]
