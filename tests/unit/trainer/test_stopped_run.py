"""Runs that are stopped at every kind of moment, and go on as though they had not been."""

import json
import os
import signal

import pytest

from grpo.checkpoint import files
from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.signals import Interrupted, StopRequest
from grpo.errors import EXIT_REQUEUE, CheckpointError, ConfigError
from grpo.placement.placement import Placement
from grpo.rollout.on_demand import OnDemandSource
from grpo.telemetry.reader import read_run
from grpo.telemetry.timers import Charge
from grpo.trainer import loop, stopping
from grpo.trainer.evaluation import Evaluator
from grpo.trainer.held import HeldCheckpoints
from grpo.trainer.run import train
from tests.support.quick_run import quick, run_quick, without_reports
from tests.support.run_contents import assert_same_run, metrics_of

STEPS = 4
OPTIONS = (f"grpo.max_num_steps={STEPS}", "grpo.val_period=2", "checkpointing.keep_latest=9")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "whole"
    run_quick(directory, *OPTIONS)
    return directory


def send(number=signal.SIGUSR1):
    os.kill(os.getpid(), number)


class Calls:
    """Does something at the n-th call of a function."""

    def __init__(self, monkeypatch, owner, name, number, action, *, after=False):
        real, count = getattr(owner, name), [0]

        def wrapped(*arguments, **keywords):
            count[0] += 1
            if count[0] == number and not after:
                action()
            result = real(*arguments, **keywords)
            if count[0] == number and after:
                action()
            return result

        monkeypatch.setattr(owner, name, wrapped)


def stop_and_go_on(directory, whole, monkeypatch, *overrides):
    """The outcome of the run that is stopped; the one that goes on must be the uninterrupted one."""
    outcome = run_quick(directory, *OPTIONS, *overrides).outcome
    manifest = read_run(directory).manifest
    assert (outcome.reason, manifest.state, manifest.reason) == ("stopped", "stopped", outcome.stopped_by)
    assert manifest.exit_code == EXIT_REQUEUE
    monkeypatch.undo()
    assert run_quick(directory, *OPTIONS, *overrides).outcome.reason == "steps"
    assert_same_run(directory, whole, STEPS)
    return outcome


def test_in_a_rollout_that_would_take_too_long_it_is_given_up_and_done_again(whole, tmp_path, monkeypatch):
    Calls(monkeypatch, OnDemandSource, "_draw", 3, send, after=True)
    outcome = stop_and_go_on(tmp_path / "run", whole, monkeypatch, "checkpointing.stop_grace_s=0")
    assert (outcome.steps, outcome.saved) == (2, True)


def test_what_placement_moves_is_known_to_the_stopping(tmp_path, monkeypatch):
    charged, known, real = [], [], Placement.enter

    def enter(placement, phase):
        charges = [*real(placement, phase), Charge("generation", "wake", 0.5), Charge("refit", "offload", 0.25)]
        charged.append(0.75)
        return charges

    class Knowing(stopping.Stopping):
        def step_done(self, seconds):
            known.append(self._moves)
            super().step_done(seconds)

    monkeypatch.setattr(Placement, "enter", enter)
    monkeypatch.setattr(loop, "Stopping", Knowing)
    run_quick(tmp_path / "run", *OPTIONS, "grpo.val_at_start=false")
    assert len(known) == STEPS
    assert sum(known) == sum(charged)


def test_with_dynamic_sampling_it_goes_on_with_the_prompts_that_come_next(tmp_path):
    options = (
        *OPTIONS, "grpo.use_dynamic_sampling=true", "grpo.dynamic_sampling_max_gen_batches=50",
        "grpo.max_num_epochs=9", "grpo.val_period=0",
    )  # fmt: skip
    run_quick(tmp_path / "whole", *options)
    for steps in range(1, STEPS + 1):
        run_quick(tmp_path / "run", *options, f"grpo.max_num_steps={steps}")
    assert_same_run(tmp_path / "run", tmp_path / "whole", STEPS)
    assert sum(line.get("rollout/discarded_groups", 0) for line in metrics_of(tmp_path / "whole")) > 0


def test_moves_into_a_phase_are_not_given_up_half_done(whole, tmp_path, monkeypatch):
    real, entered, moved = Placement.enter, [], []

    def enter(placement, phase):
        entered.append(phase)
        if entered.count("generation") == 3 and phase == "generation":
            send()
        charges = real(placement, phase)
        moved.append(phase)
        return charges

    monkeypatch.setattr(Placement, "enter", enter)
    outcome = stop_and_go_on(tmp_path / "run", whole, monkeypatch, "checkpointing.stop_grace_s=0")
    assert outcome.steps == 2
    assert moved == entered


def test_a_rollout_that_was_given_up_between_two_saves_is_preceded_by_one(whole, tmp_path, monkeypatch):
    Calls(monkeypatch, OnDemandSource, "_draw", 2, send, after=True)
    outcome = stop_and_go_on(
        tmp_path / "run", whole, monkeypatch, "checkpointing.stop_grace_s=0", "checkpointing.save_period=4"
    )
    assert (outcome.steps, outcome.saved) == (1, True)


def test_with_time_the_step_is_finished(whole, tmp_path, monkeypatch):
    Calls(monkeypatch, OnDemandSource, "_draw", 3, send)
    assert stop_and_go_on(tmp_path / "run", whole, monkeypatch).steps == 3


def test_in_a_validation_without_time_the_next_run_makes_it_good(whole, tmp_path, monkeypatch):
    Calls(monkeypatch, Evaluator, "evaluate", 2, send)
    directory = tmp_path / "run"
    outcome = stop_and_go_on(directory, whole, monkeypatch, "checkpointing.stop_grace_s=0")
    assert outcome.steps == 2
    metrics = {info.step: info.metrics for info in manager(directory / "checkpoints").list()}
    assert "validation/accuracy" in metrics[2]


def test_in_the_last_validation_the_next_run_has_nothing_else_to_do(whole, tmp_path, monkeypatch):
    Calls(monkeypatch, Evaluator, "evaluate", 3, send)
    assert stop_and_go_on(tmp_path / "run", whole, monkeypatch, "checkpointing.stop_grace_s=0").steps == STEPS


def test_the_last_validation_is_made_good_however_often_it_is_given_up(whole, tmp_path, monkeypatch):
    directory, options = tmp_path / "run", ("checkpointing.stop_grace_s=0",)
    Calls(monkeypatch, Evaluator, "evaluate", 3, send)
    assert run_quick(directory, *OPTIONS, *options).outcome.reason == "stopped"
    monkeypatch.undo()
    Calls(monkeypatch, Evaluator, "evaluate", 1, send)
    outcome = stop_and_go_on(directory, whole, monkeypatch, *options)
    assert (outcome.steps, outcome.saved) == (STEPS, True)


def test_in_a_save_it_stops_with_that_save_however_often_it_is_asked(whole, tmp_path, monkeypatch):
    def insist():
        send(signal.SIGTERM)
        send(signal.SIGUSR1)
        send(signal.SIGTERM)

    Calls(monkeypatch, files, "rename", 1, insist)
    outcome = stop_and_go_on(tmp_path / "run", whole, monkeypatch)
    assert (outcome.steps, outcome.stopped_by) == (2, "SIGTERM")


def test_after_the_last_step_there_is_nothing_to_stop(tmp_path, monkeypatch):
    Calls(monkeypatch, OnDemandSource, "_draw", STEPS, send)
    outcome = run_quick(tmp_path / "run", *OPTIONS).outcome
    assert (outcome.reason, outcome.stopped_by, outcome.steps) == ("steps", None, STEPS)
    assert read_run(tmp_path / "run").manifest.exit_code == 0


def test_the_time_limit_saves_and_asks_to_be_started_again(whole, tmp_path, monkeypatch):
    class Over(stopping.Stopping):
        def step_done(self, seconds):
            super().step_done(seconds)
            if self._steps == 3:
                self._deadline = 0

    monkeypatch.setattr(loop, "Stopping", Over)
    limit = "checkpointing.checkpoint_must_save_by=01:00:00:00"
    outcome = stop_and_go_on(tmp_path / "run", whole, monkeypatch, limit)
    assert (outcome.steps, outcome.stopped_by) == (3, "checkpointing.checkpoint_must_save_by")


def test_a_time_limit_that_is_over_before_the_first_step_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="too little for one step"):
        run_quick(tmp_path / "run", *OPTIONS, "checkpointing.checkpoint_must_save_by=00:00:00:00")
    assert read_run(tmp_path / "run").manifest.exit_code == 2


def test_a_kill_between_a_save_and_the_line_of_its_metrics_loses_no_line(whole, tmp_path, monkeypatch):
    def die():
        raise KeyboardInterrupt

    Calls(monkeypatch, loop.Trainer, "_save", 1, die, after=True)
    with pytest.raises(KeyboardInterrupt):
        run_quick(tmp_path / "run", *OPTIONS)
    assert len(metrics_of(tmp_path / "run")) == 2  # step 0 and 1
    monkeypatch.undo()
    run_quick(tmp_path / "run", *OPTIONS)
    assert_same_run(tmp_path / "run", whole, STEPS)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["timing/total"] > 0 for line in lines)
    assert all(line["performance/tokens_per_second_per_gpu"] > 0 for line in lines[1:])


@pytest.mark.parametrize("name", ["assembled", "write_event", "defer"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_before_the_first_step_the_manifest_says_what_the_exit_code_says(tmp_path, monkeypatch, name, number):
    from grpo.telemetry.run_directory import RunDirectory
    from grpo.trainer import run as module

    owner = {"assembled": module, "write_event": RunDirectory, "defer": StopRequest}[name]
    Calls(monkeypatch, owner, name, 1, lambda: send(number))
    with without_reports(), StopRequest(at_once=True) as stop, pytest.raises(Interrupted, match=number.name):
        train(quick(tmp_path / "run", *OPTIONS), fresh=False, quiet=True, command=[], stop=stop)
    manifest = read_run(tmp_path / "run").manifest
    code = 130 if number == signal.SIGINT else EXIT_REQUEUE
    assert (manifest.state, manifest.reason, manifest.exit_code) == ("stopped", number.name, code)


def manager(directory):
    return CheckpointManager(
        directory, keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )


def test_two_runs_do_not_share_a_folder_of_checkpoints(tmp_path):
    shared = manager(tmp_path / "shared")
    shared.prepare()
    with HeldCheckpoints(shared) as held:
        held.take()
        with pytest.raises(CheckpointError, match=rf"process {os.getpid()} on .*checkpointing.checkpoint_dir"):
            run_quick(tmp_path / "run", *OPTIONS, f"checkpointing.checkpoint_dir={tmp_path}/shared")
    assert not (tmp_path / "run").exists()


def test_a_run_that_lost_its_folder_saves_nothing_more(tmp_path, monkeypatch):
    def lost(self):
        raise CheckpointError("another run has it")

    monkeypatch.setattr(HeldCheckpoints, "check", lost)
    with pytest.raises(CheckpointError, match="another run has it"):
        run_quick(tmp_path / "run", *OPTIONS)
    assert manager(tmp_path / "run" / "checkpoints").list() == []


def test_an_old_run_set_aside_takes_its_checkpoints_and_their_lock_with_it(whole, tmp_path):
    directory = tmp_path / "run"
    run_quick(directory, *OPTIONS, "grpo.max_num_steps=2")
    run_quick(directory, *OPTIONS, fresh=True)
    assert_same_run(directory, whole, STEPS)
    assert [info.step for info in manager(tmp_path / "run.1" / "checkpoints").list()] == [2]


def test_a_kill_between_the_last_save_and_the_end_leaves_nothing_to_be_done_by_hand(whole, tmp_path, monkeypatch):
    def die():
        raise KeyboardInterrupt

    directory = tmp_path / "run"
    Calls(monkeypatch, loop.Trainer, "_save", 2, die, after=True)
    with pytest.raises(KeyboardInterrupt):
        run_quick(directory, *OPTIONS)
    monkeypatch.undo()
    outcome = run_quick(directory, *OPTIONS).outcome
    assert (outcome.reason, outcome.steps, outcome.saved) == ("steps", STEPS, True)
    assert_same_run(directory, whole, STEPS)
    with pytest.raises(ConfigError, match="has 4 steps already"):
        run_quick(directory, *OPTIONS)


def test_a_save_that_is_gone_is_said(tmp_path):
    import shutil

    run_quick(tmp_path / "run", *OPTIONS, "grpo.max_num_steps=3", "checkpointing.save_period=1")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_3")
    run_quick(tmp_path / "run", *OPTIONS)
    warnings = [event["message"] for event in read_run(tmp_path / "run").events if event["kind"] == "warning"]
    assert warnings == ["the checkpoint of step 3, which this run saved last, is not there any more"]


def test_a_clock_that_jumps_changes_nothing(whole, tmp_path, monkeypatch):
    import random
    import time

    chance = random.Random(1)
    monkeypatch.setattr(time, "time", lambda: 1e9 + chance.uniform(-5e8, 5e8))
    options = (*OPTIONS, "checkpointing.checkpoint_must_save_by=00:01:00:00")
    assert run_quick(tmp_path / "run", *options, "grpo.max_num_steps=2").outcome.reason == "steps"
    assert run_quick(tmp_path / "run", *options).outcome.reason == "steps"
    assert_same_run(tmp_path / "run", whole, STEPS)


def test_a_foreign_folder_with_the_name_of_a_checkpoint_is_left_alone(tmp_path):
    mine = tmp_path / "checkpoints" / "step_2"
    mine.mkdir(parents=True)
    (mine / "mine").touch()
    with pytest.raises(CheckpointError, match=r"step_2 exists and is not a checkpoint; it is left alone"):
        run_quick(tmp_path / "run", *OPTIONS, f"checkpointing.checkpoint_dir={tmp_path}/checkpoints")
    assert (mine / "mine").exists()
