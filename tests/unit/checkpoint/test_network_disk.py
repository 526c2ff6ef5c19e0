"""What network file systems do otherwise: names that are taken, listings that are old, clocks that disagree."""

import errno
import os
import random
import time

import pytest

from grpo.checkpoint import layout
from grpo.errors import CheckpointError


@pytest.fixture
def strict_renames(monkeypatch):
    """No rename replaces anything, not even an empty folder."""
    real = os.rename

    def rename(source, target, **keywords):
        if os.path.lexists(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(target))
        real(source, target, **keywords)

    monkeypatch.setattr(os, "rename", rename)


def names(directory):
    return sorted(entry.name for entry in directory.iterdir() if entry.is_dir())


def test_saving_never_renames_onto_something(make_manager, state, same, strict_renames):
    checkpoints = make_manager(keep_latest=1, keep_top_k=0)
    for step, variant in [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (1, 1)]:
        for leftover in ("step_3.tmp", "step_2.trash"):
            (checkpoints.directory / leftover).mkdir(parents=True, exist_ok=True)
            (checkpoints.directory / leftover / layout.MARKER).touch()
        checkpoints.save(*state(step, variant))
        loaded = checkpoints.load()
        assert same(loaded)
        assert (loaded.step, loaded.values["variant"]) == (step, variant)
        assert names(checkpoints.directory) == [f"step_{step}"]


def test_a_listing_that_still_has_what_is_gone_is_of_no_consequence(make_manager, state, same, monkeypatch):
    checkpoints = make_manager()
    checkpoints.save(*state(1))
    real = layout.os.scandir

    class Entry:
        def __init__(self, name):
            self.name = name

        def is_dir(self, *, follow_symlinks):
            return True

    monkeypatch.setattr(layout.os, "scandir", lambda path: [*real(path), Entry("step_7"), Entry("step_8.tmp")])
    assert [info.step for info in checkpoints.list()] == [1]
    assert same(checkpoints.load_latest().loaded)


def test_the_order_of_saving_is_not_that_of_any_clock(make_manager, state, monkeypatch):
    checkpoints = make_manager(keep_latest=3, keep_top_k=0)
    chance = random.Random(4)
    monkeypatch.setattr(time, "time", lambda: chance.uniform(-1e10, 1e10))
    for step in (5, 2, 9, 4, 7):
        path = checkpoints.save(*state(step)).path
        stamp = chance.uniform(0, 4e9)
        for file in [path, *path.iterdir()]:
            os.utime(file, (stamp, stamp))
    assert [info.step for info in checkpoints.list()] == [9, 4, 7]
    assert checkpoints.load().step == 7


def test_a_reader_on_a_disk_whose_deleted_files_stay_keeps_its_folder(make_manager, state, monkeypatch):
    """As on NFS, where an open file that is deleted stays under another name until it is closed."""
    checkpoints = make_manager(keep_latest=1, keep_top_k=0)
    checkpoints.save(*state(1))
    real = os.rmdir

    def busy(path, **keywords):
        if str(path).endswith("step_1.trash"):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        real(path, **keywords)

    monkeypatch.setattr(os, "rmdir", busy)
    saved = checkpoints.save(*state(2))
    assert "step_1.trash" in saved.problems[0]
    assert checkpoints.load().step == 2
    monkeypatch.undo()
    checkpoints.save(*state(3))
    assert names(checkpoints.directory) == ["step_3"]


def test_a_full_disk_in_the_middle_of_a_rename_is_an_error_that_names_it(make_manager, state, same, monkeypatch):
    checkpoints = make_manager()
    checkpoints.save(*state(1))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full)
        with pytest.raises(CheckpointError, match=r"step_2: .*No space left"):
            checkpoints.save(*state(2))
    assert same(checkpoints.load_latest().loaded)
    assert names(checkpoints.directory) == ["step_1"]
