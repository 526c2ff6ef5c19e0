import json
from types import SimpleNamespace

import pytest
import torch

from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.rank_state import Staged
from grpo.checkpoint.saver import Saver
from grpo.errors import CheckpointError
from grpo.telemetry.timers import PhaseTimer
from grpo.trainer.saves import Saves, source_tensors


class NoRanks:
    """Of a policy that has nothing to save."""

    def stage(self, *, copy):
        return Staged(0, {"policy": {}}, 0.0)

    def write(self, folder, *, in_background):
        return []


class Told:
    def __init__(self):
        self.events, self.lines, self.seconds = [], [], []

    def write_event(self, kind, **fields):
        self.events.append({"kind": kind, **fields})


def saves_of(folder, told, **parts):
    manager = CheckpointManager(
        folder, keep_latest=9, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )
    given = {
        "saver": Saver(manager, NoRanks(), in_background=True), "timer": PhaseTimer(), "run": told,
        "say": told.lines.append, "before_save": lambda: None,
        "source": SimpleNamespace(state=lambda: ({"waiting": torch.arange(3)}, {"drawn": 4})), **parts,
    }  # fmt: skip
    return Saves(SimpleNamespace(**given), told.seconds.append), manager


def test_a_save_is_told_of_once_it_is_on_the_disk_and_has_what_the_source_has(tmp_path):
    told = Told()
    saves, manager = saves_of(tmp_path / "saved", told)
    with saves._parts.timer.step() as times:
        saves.save(3, {"reward": 1.0}, {"step": 3})
    assert times["timing/checkpoint/staging"] > 0
    saves.wait()
    saves.check()
    (event,) = told.events
    assert (event["kind"], event["step"], saves.step) == ("checkpoint", 3, 3)
    assert told.seconds == [event["staged_seconds"] + event["seconds"]]
    assert told.lines[0].startswith("checkpoint step 3: ")
    json.dumps(event)
    with manager.open_latest() as found:
        assert source_tensors(found.opened.tensors)["waiting"].tolist() == [0, 1, 2]
        assert found.opened.values["source"] == {"drawn": 4}
        assert found.opened.values["trainer"] == {"step": 3}


def test_a_failure_is_raised_by_every_check_and_is_a_note_on_another_error(tmp_path, monkeypatch):
    saves, _ = saves_of(tmp_path / "saved", Told())
    failed = CheckpointError("a full disk")

    def fail():
        raise failed

    monkeypatch.setattr(saves._parts.saver, "poll", fail)
    monkeypatch.setattr(saves._parts.saver, "wait", fail)
    error = ValueError("another")
    saves.wait_after(error)
    assert error.__notes__ == ["and a save that was under way failed: a full disk"]
    with pytest.raises(CheckpointError, match="a full disk"):
        saves.check()
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="a full disk"):
        saves.check()


def test_a_run_that_lost_its_folder_stages_nothing(tmp_path):
    def lost():
        raise CheckpointError("another run has it")

    saves, manager = saves_of(tmp_path / "saved", Told(), before_save=lost)
    with pytest.raises(CheckpointError, match="another run"), saves._parts.timer.step():
        saves.save(1, {}, {})
    assert (saves.step, manager.list()) == (None, [])


def test_without_checkpoints_there_is_nothing_to_do(tmp_path):
    saves, _ = saves_of(tmp_path, Told(), saver=None)
    assert not saves.enabled
    saves.prepare()
    saves.check()
    saves.wait()
    saves.on_failure(lambda: None)
