"""Ranks in processes of their own: one that is killed, a stop while they work, a driver that is killed."""

import os
import signal

import pytest
import torch

from grpo.errors import EXIT_REQUEUE, WorkerError
from grpo.telemetry.reader import read_run
from grpo.workers.generation import engine_group
from grpo.workers.policy.group import PolicyGroup
from tests.support.quick_run import run_quick
from tests.support.run_contents import metrics_of, state_of
from tests.support.stuck_engine import CALL, StuckEngine

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("shared_ray")]
STEPS = 4
OPTIONS = (f"grpo.max_num_steps={STEPS}", "grpo.val_period=2", "checkpointing.save_period=1")
RANKS = ("cluster.launcher=ray", "cluster.cpu_ranks=2", "policy.train_micro_batch_size=6")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "whole"
    run_quick(directory, *OPTIONS)
    return directory


def at_call(monkeypatch, owner, name, number, action):
    real, count = getattr(owner, name), [0]

    def wrapped(self, *arguments, **keywords):
        count[0] += 1
        if count[0] == number:
            action(self)
        return real(self, *arguments, **keywords)

    monkeypatch.setattr(owner, name, wrapped)


def kill_last_rank(policy):
    os.kill(policy._group.places[-1].pid, signal.SIGKILL)


def assert_close(directory, other):
    """Two ranks add up in another order."""
    for mine, its in zip(metrics_of(directory), metrics_of(other), strict=True):
        mine.pop("train/padding_efficiency", None)
        mine.pop("performance/dispatches", None)
        assert mine == pytest.approx({name: its[name] for name in mine}, rel=1e-4, abs=1e-5)
    mine, its = state_of(directory, STEPS), state_of(other, STEPS)
    for name, each in its.items():
        if name.startswith("policy/model."):
            torch.testing.assert_close(mine[name], each, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("moment", [pytest.param("train", marks=pytest.mark.nightly), "write"])
def test_a_run_of_which_a_rank_was_killed_goes_on_from_its_last_checkpoint(whole, tmp_path, monkeypatch, moment):
    at_call(monkeypatch, PolicyGroup, moment, 3, kill_last_rank)
    with pytest.raises(WorkerError, match="rank 1"):
        run_quick(tmp_path / "run", *OPTIONS, *RANKS)
    monkeypatch.undo()
    assert read_run(tmp_path / "run").manifest.state == "failed"
    assert run_quick(tmp_path / "run", *OPTIONS).outcome.steps == STEPS
    resumed = [event["step"] for event in read_run(tmp_path / "run").events if event["kind"] == "resumed"]
    assert resumed == [2]
    assert_close(tmp_path / "run", whole)


@pytest.mark.parametrize("sleep_level", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_a_stop_gives_up_what_an_engine_in_another_process_samples(tmp_path, monkeypatch, sleep_level):
    options = (*OPTIONS, "grpo.val_period=0", "grpo.val_at_start=false", "checkpointing.stop_grace_s=0")
    # With a save that is still to be made, for which the policy needs the engine's memory.
    sleeping = [f"policy.generation.colocated.sleep_level={sleep_level}", "checkpointing.save_period=4"]
    monkeypatch.setattr(engine_group, "EngineRank", StuckEngine)
    outcome = run_quick(tmp_path / "run", *options, "cluster.launcher=ray", *(sleeping if sleep_level else [])).outcome
    assert (outcome.steps, outcome.stopped_by, outcome.saved) == (CALL - 1, "SIGUSR1", True)
    assert read_run(tmp_path / "run").manifest.exit_code == EXIT_REQUEUE
