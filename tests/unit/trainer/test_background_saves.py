"""Runs whose checkpoints are written while they train on."""

import json
import os
import signal
import threading

import pytest

from grpo.checkpoint import rank_state
from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.saver import Saver
from grpo.checkpoint.staging import StagingBuffers
from grpo.errors import CheckpointError
from grpo.rollout.on_demand import OnDemandSource
from grpo.telemetry.reader import read_run
from grpo.trainer import loop
from grpo.trainer.evaluation import Evaluator
from grpo.workers.policy.dtensor import DTensorPolicy
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


def test_memory_for_the_first_save_is_made_beside_the_steps_before_it(tmp_path, monkeypatch):
    made, real = [], StagingBuffers.prepare
    monkeypatch.setattr(
        StagingBuffers, "prepare", lambda self, plan: (made.append(plan.tensor_bytes), real(self, plan))
    )
    monkeypatch.setattr(StagingBuffers, "_buffer", unchanged(StagingBuffers._buffer))
    run_small(tmp_path / "run", *IN_BACKGROUND, "grpo.max_num_steps=3")
    run_small(tmp_path / "at once", "grpo.max_num_steps=3")
    saved = events(tmp_path / "run", "checkpoint")
    assert [event["step"] for event in saved] == [2, 3]
    (size,) = made
    assert 0.9 * saved[0]["bytes"] < size < saved[0]["bytes"]


def unchanged(real):
    """A save takes the buffer that is there: none is made by the training thread."""

    def buffer(self, file, size, *, page_locked):
        present = self._buffers[file]
        assert real(self, file, size, page_locked=page_locked) is present
        return present

    return buffer


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


class FailsAt:
    """The save of step 2 fails on a full disk when a function is called for the n-th time, which goes on after it."""

    def __init__(self, patch, owner, name, number, *, goes_on=lambda: None):
        blocked = Blocked(patch, fail=OSError(28, "No space left on device"))
        savers, calls, real = [], [0], getattr(owner, name)
        write = Saver.write
        patch.setattr(Saver, "write", lambda saver, *rest, **k: (savers.append(saver), write(saver, *rest, **k))[1])
        self.ended = False

        def called(*arguments, **keywords):
            calls[0] += 1
            if calls[0] != number:
                return real(*arguments, **keywords)
            pending = savers[0]._pending
            blocked.released.set()
            goes_on()
            pending.exception(timeout=30)
            result = real(*arguments, **keywords)
            self.ended = True
            return result

        patch.setattr(owner, name, called)


def check_failed(directory, *, steps):
    assert [line["step"] for line in lines(directory)] == [0, *range(1, steps + 1)]
    assert saved_steps(directory) == []
    manifest = read_run(directory).manifest
    assert manifest.state == "failed"
    assert "No space left" in manifest.reason


def phases_of(patch):
    """Those that have begun."""
    entered, real = [], loop.Trainer._enter

    def enter(self, phase):
        charges = real(self, phase)
        entered.append(phase)
        return charges

    patch.setattr(loop.Trainer, "_enter", enter)
    return entered


UPDATES = (
    "checkpointing.save_period=2", "policy.train_global_batch_size=6", "policy.train_micro_batch_size=6",
    "loss_fn.force_on_policy_ratio=false",
)  # fmt: skip


@pytest.mark.parametrize("place", ["generation", "policy_training", "validation"])
def test_a_failed_write_ends_the_run_where_it_is(tmp_path, monkeypatch, place):
    """A rollout or a validation is given up, however long it would take; updates end with the one under way."""
    forever = lambda: threading.Event().wait(30)  # noqa: E731
    entered = phases_of(monkeypatch)
    owner, name, number, goes_on = {
        "generation": (OnDemandSource, "_draw", 3, forever), "policy_training": (DTensorPolicy, "train", 5, None),
        "validation": (Evaluator, "evaluate", 2, forever),
    }[place]  # fmt: skip
    fails = FailsAt(monkeypatch, owner, name, number, goes_on=goes_on or (lambda: None))
    with pytest.raises(CheckpointError, match=r"step_2: .*No space left"):
        run_small(tmp_path / "run", *IN_BACKGROUND, *UPDATES)
    assert fails.ended == (place == "policy_training"), "what was given up does not end"
    assert (
        entered[-1] == {"generation": "refit", "policy_training": "policy_training", "validation": "validation"}[place]
    )
    check_failed(tmp_path / "run", steps=2)


def test_a_failed_write_ends_the_run_before_the_next_update(tmp_path, monkeypatch):
    updates, real = [], DTensorPolicy.train
    monkeypatch.setattr(DTensorPolicy, "train", lambda policy, batch: (updates.append(1), real(policy, batch))[1])
    FailsAt(monkeypatch, DTensorPolicy, "train", 5)
    with pytest.raises(CheckpointError, match=r"step_2: .*No space left"):
        run_small(tmp_path / "run", *IN_BACKGROUND, *UPDATES)
    assert len(updates) == 5, "the second one of step 3 is not begun"


def test_a_failed_write_ends_the_run_before_the_next_phase(tmp_path, monkeypatch):
    entered = phases_of(monkeypatch)
    FailsAt(monkeypatch, DTensorPolicy, "train", 6)  # the last update of step 3, after which the next one would begin
    with pytest.raises(CheckpointError, match=r"step_2: .*No space left"):
        run_small(tmp_path / "run", *IN_BACKGROUND, *UPDATES, "grpo.val_period=0")
    assert entered[-1] == "policy_training"
    assert [line["step"] for line in lines(tmp_path / "run")][-1] == 3


def test_a_failed_write_ends_the_run_before_a_validation(tmp_path, monkeypatch):
    entered = phases_of(monkeypatch)
    FailsAt(monkeypatch, loop, "reward_metrics", 3)  # after the updates of step 3, which validates
    with pytest.raises(CheckpointError, match=r"step_2: .*No space left"):
        run_small(tmp_path / "run", *IN_BACKGROUND, *UPDATES)
    assert entered[-1] == "policy_training"
    assert entered.count("validation") == 1, "the one before training"


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
