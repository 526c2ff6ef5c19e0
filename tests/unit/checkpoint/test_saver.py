"""A policy is saved at once and in the background; a gate holds the writing where a test wants it."""

import threading

import pytest
import torch

from grpo.checkpoint import rank_state
from grpo.checkpoint.manager import CheckpointManager
from grpo.checkpoint.rank_state import LocalState
from grpo.checkpoint.saver import Saver
from grpo.errors import CheckpointError
from grpo.workers.policy.dtensor import DTensorPolicy
from tests.support.policy import random_batch, tiny_config, tiny_model, whole_state


class Gate:
    """Writing waits here until it is opened; `fail` is raised then."""

    def __init__(self, patch):
        self._real = rank_state.write_shards
        self.open, self.reached, self.fail = threading.Event(), threading.Event(), None
        patch.setattr(rank_state, "write_shards", self._write)

    def _write(self, *arguments, **keywords):
        self.reached.set()
        assert self.open.wait(30)
        if self.fail is not None:
            raise self.fail
        return self._real(*arguments, **keywords)


@pytest.fixture
def gate(monkeypatch):
    held = Gate(monkeypatch)
    yield held
    held.open.set()


@pytest.fixture
def policy():
    return DTensorPolicy(tiny_model(), tiny_config(policy={"optimizer": {"kwargs": {"lr": 1e-3}}}))


def make_saver(policy, folder, *, in_background=True, **options):
    manager = CheckpointManager(
        folder, keep_latest=9, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )
    return Saver(manager, LocalState(policy), in_background=in_background, **options)


def save(saver, step):
    saver.stage({"extra": torch.full((2,), step)}, {"trainer": {"step": step}})
    return saver.write(step, {"m": 1.0})


def stored(saver, step):
    loaded = saver.manager.load(saver.manager.directory / f"step_{step}")
    prefix = "policy/"
    return {name.removeprefix(prefix): each for name, each in loaded.tensors.items() if name.startswith(prefix)}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_saves_in_a_row_are_each_the_weights_of_their_step(policy, tmp_path, gate):
    saver, live = make_saver(policy, tmp_path), {}
    for step in (1, 2, 3):
        policy.train(random_batch(seed=step))
        live[step], _ = whole_state(policy)
        saver.wait()
        gate.reached.clear()
        gate.open.clear()
        assert save(saver, step) == []
        assert gate.reached.wait(30)
        policy.train(random_batch(seed=50 + step))  # while the files are not even begun
        assert saver.poll() == []
        gate.open.set()
    (report,) = saver.wait()
    assert report.in_background
    assert report.saved.step == 3
    assert saver.wait() == saver.poll() == []
    for step, weights in live.items():
        assert equal(stored(saver, step), weights), step
    assert not equal(stored(saver, 1), stored(saver, 2))


def test_at_once_and_in_the_background_save_the_same(policy, tmp_path):
    policy.train(random_batch())
    one, other = make_saver(policy, tmp_path / "a", in_background=False), make_saver(policy, tmp_path / "b")
    (report,) = save(one, 4)
    assert not report.in_background
    assert report.staged_seconds > 0
    save(other, 4)
    other.wait()
    loaded = [each.manager.load() for each in (one, other)]
    assert equal(*(each.tensors for each in loaded))
    assert loaded[0].values == loaded[1].values
    assert loaded[0].values["trainer"] == {"step": 4}
    assert torch.equal(loaded[1].tensors["extra"], torch.tensor([4, 4]))
    assert {"rng/torch", "rng/python", "rng/numpy"} <= loaded[0].tensors.keys()
    assert loaded[0].metrics == {"m": 1.0}


def test_what_is_given_may_be_changed_once_it_is_staged(policy, tmp_path, gate):
    saver, tensor, values = make_saver(policy, tmp_path), torch.zeros(3), {"list": [1]}
    saver.stage({"extra": tensor}, values)
    saver.write(1, {})
    tensor.fill_(7)
    values["list"].append(2)
    gate.open.set()
    saver.wait()
    loaded = saver.manager.load()
    assert torch.equal(loaded.tensors["extra"], torch.zeros(3))
    assert loaded.values["list"] == [1]


@pytest.mark.parametrize("asked", ["poll", "wait"])
def test_a_write_that_fails_is_raised_by_whoever_asks_next_and_spoils_nothing(policy, tmp_path, gate, asked):
    saver, told = make_saver(policy, tmp_path), threading.Event()
    gate.open.set()
    saver.on_failure = lambda: pytest.fail("nothing has failed")
    save(saver, 1)
    saver.wait()
    gate.fail = OSError(28, "No space left on device")
    saver.on_failure = told.set
    save(saver, 2)
    assert told.wait(30)
    with pytest.raises(CheckpointError, match=r"step_2: .*No space left on device"):
        getattr(saver, asked)()
    assert saver.poll() == saver.wait() == []
    assert [info.step for info in saver.manager.list()] == [1]
    gate.fail = None
    save(saver, 3)
    saver.wait()
    assert [info.step for info in saver.manager.list()] == [1, 3]


def test_a_write_without_end_is_an_error(policy, tmp_path, gate):
    saver = make_saver(policy, tmp_path, timeout_s=0.01)
    save(saver, 1)
    with pytest.raises(CheckpointError, match=r"did not end within 0.01 s"):
        saver.wait()


def test_staging_beside_a_save_is_a_fault_of_the_caller(policy, tmp_path, gate):
    saver = make_saver(policy, tmp_path)
    save(saver, 1)
    with pytest.raises(AssertionError, match="wait comes first"):
        saver.stage({}, {})


def test_values_that_cannot_be_saved_are_refused_before_training_goes_on(policy, tmp_path):
    with pytest.raises(CheckpointError, match="is a tuple"):
        make_saver(policy, tmp_path).stage({}, {"pair": (1, 2)})


def test_the_report_tells_size_times_and_rate(policy, tmp_path):
    (report,) = save(make_saver(policy, tmp_path, in_background=False), 5)
    event = report.event()
    assert event["bytes"] == sum(
        path.stat().st_size for path in report.saved.path.iterdir() if path.suffix in (".safetensors", ".json")
    ) - (report.saved.path / "manifest.json").stat().st_size  # fmt: skip
    assert event["bytes_per_second"] == event["bytes"] / event["write_seconds"]
    assert 0 < event["write_seconds"] <= event["seconds"]
    assert report.text().startswith(f"checkpoint step 5: {event['bytes'] / 1e6:.1f} MB, staged 0.")
    assert event["moved_seconds"] == 0
    saver = make_saver(policy, tmp_path, in_background=False)
    saver.stage({}, {})
    assert saver.write(6, {}, moved_seconds=2.5)[0].event()["moved_seconds"] == 2.5


def test_memory_is_made_once_and_for_saves_in_the_background_alone(policy, tmp_path, monkeypatch):
    prepared = []

    def prepare(self):
        prepared.append(self)

    monkeypatch.setattr(LocalState, "prepare", prepare)
    at_once, beside = make_saver(policy, tmp_path, in_background=False), make_saver(policy, tmp_path)
    for saver in (at_once, beside, beside):
        saver.prepare()
    assert prepared == [beside._ranks]
