"""Readers, saves, retention, pins and kills in any order: what is read stays whole, what is saved is never lost."""

import random
from contextlib import ExitStack

import pytest
import torch

from grpo.checkpoint.pins import pin, unpin
from grpo.checkpoint.reading import open_checkpoint
from grpo.errors import CheckpointError


class World:
    """One run that saves, a second process that looks after the folder, and readers that hold checkpoints open."""

    def __init__(self, make_manager, state, same, disk, chance):
        self.saving = make_manager(keep_latest=1, keep_top_k=1, keep_every_n_steps=4)
        self.pruning = make_manager(keep_latest=1, keep_top_k=0)
        self.state, self.same, self.disk, self.chance = state, same, disk, chance
        self.readers = []
        self.last = None  # step and variant of what was saved last
        self.tried = None
        self.variant = 0

    def act(self):
        name = self.chance.choice(["save", "save", "again", "kill", "open", "open", "close", "prune", "pin", "unpin"])
        getattr(self, name)()
        self.check()

    def save(self, step=None, **failure):
        self.variant += 1
        step = step or self.chance.randrange(1, 9)
        self.tried = (step, self.variant)
        self.disk.start(**failure)
        try:
            self.saving.save(*self.state(step, self.variant))
            self.last = self.tried
        except self.disk.killed:
            pass
        finally:
            self.disk.start()

    def again(self):
        if self.last is not None:
            self.save(self.last[0])

    def kill(self):
        self.save(kill_at=self.chance.randrange(60))

    def prune(self):
        self.pruning.prune()

    def pin(self):
        for info in self.chance.sample(self.saving.list(), min(1, len(self.saving.list()))):
            pin(info.path)

    def unpin(self):
        for info in self.saving.list():
            unpin(info.path)

    def open(self):
        infos = self.saving.list()
        if infos:
            stack = ExitStack()
            opened = stack.enter_context(open_checkpoint(self.chance.choice(infos).path, None))
            self.readers.append((stack, opened))

    def close(self):
        if self.readers:
            self.readers.pop(self.chance.randrange(len(self.readers)))[0].close()

    def check(self):
        for _, opened in self.readers:
            _, tensors, _, _ = self.state(opened.step, opened.values["variant"])
            assert all(torch.equal(opened.tensors[name][...], each) for name, each in tensors.items())
        found = self.saving.load_latest()
        assert found.refused == ()
        if self.last is not None:
            assert self.same(found.loaded)
            assert (found.loaded.step, found.loaded.values["variant"]) in {self.last, self.tried}
            self.last = (found.loaded.step, found.loaded.values["variant"])


@pytest.mark.parametrize("seed", range(12))
def test_any_order(make_manager, state, same, disk, seed):
    world = World(make_manager, state, same, disk, random.Random(seed))
    try:
        for _ in range(25):
            world.act()
        assert world.last is not None
    finally:
        for stack, _ in world.readers:
            stack.close()
    world.saving.save(*state(9))
    world.saving.prune()
    assert not any("." in info.path.name for info in world.saving.list())


def test_a_save_while_another_process_prunes_is_refused_and_the_reverse(make_manager, state, monkeypatch):
    checkpoints, other = make_manager(), make_manager()
    checkpoints.save(*state(1))
    seen = []

    def prune_meanwhile(*_):
        with pytest.raises(CheckpointError, match="another process is saving"):
            other.prune()
        seen.append(True)
        return ()

    monkeypatch.setattr(checkpoints, "superfluous", prune_meanwhile)
    checkpoints.save(*state(2))
    assert seen == [True]
