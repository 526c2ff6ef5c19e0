"""A kill, or an error of the disk, at every single change that a save makes to it."""

import errno
import os
import subprocess
import sys

import pytest

from grpo.errors import CheckpointError

# What the save under test finds: two or three complete ones, a leftover, and retention with something to delete.
SCENES = {"new step": [1, 2, 3], "step saved again": [1, 2, 3, 4]}
SAVED = 4


@pytest.fixture
def scene(make_manager, state, disk):
    def prepare(name, number):
        checkpoints = make_manager(directory=make_manager().directory / str(number), keep_latest=2, keep_top_k=1)
        disk.start()
        for step in SCENES[name]:
            checkpoints.save(*state(step))
        leftover = checkpoints.directory / "step_9.tmp"
        leftover.mkdir()
        (leftover / ".grpo-checkpoint").touch()
        return checkpoints

    return prepare


def attempt(checkpoints, disk, arguments, **settings):
    disk.start(**settings)
    try:
        return checkpoints.save(*arguments)
    except disk.killed:
        return None
    finally:
        changes = disk.log
        disk.start()
        disk.log = changes


def changes_of_a_save(scene, disk, state, name):
    attempt(scene(name, "counting"), disk, state(SAVED, variant=1))
    return list(disk.log)


def check_old_or_new(checkpoints, same, name):
    found = checkpoints.load_latest()
    assert found.refused == ()
    assert same(found.loaded)
    before = max(SCENES[name])
    assert (found.loaded.step, found.loaded.values["variant"]) in {(before, 0), (SAVED, 1)}
    return found.loaded


def check_tidy_after_another_save(checkpoints, state, same):
    checkpoints.save(*state(5))
    assert same(checkpoints.load())
    left = sorted(entry.name for entry in checkpoints.directory.iterdir() if entry.is_dir())
    assert not any("." in folder for folder in left), left
    assert left[0] == "step_1"
    assert left[-1] == "step_5"
    assert len(left) == 3
    assert all(same(checkpoints.load(info.path)) for info in checkpoints.list())


@pytest.mark.parametrize("name", SCENES)
def test_a_kill_at_every_change_leaves_a_whole_checkpoint(scene, disk, state, same, name):
    changes = changes_of_a_save(scene, disk, state, name)
    assert {"open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir"} == {change for change, _ in changes}
    steps = []
    for instant in range(len(changes)):
        checkpoints = scene(name, instant)
        assert attempt(checkpoints, disk, state(SAVED, variant=1), kill_at=instant) is None
        steps.append(check_old_or_new(checkpoints, same, name).values["variant"])
        check_tidy_after_another_save(checkpoints, state, same)
    assert steps == sorted(steps), "once committed, always committed"
    assert {0, 1} == set(steps)


@pytest.mark.parametrize("name", SCENES)
def test_a_second_kill_while_the_next_run_tidies_up(scene, disk, state, same, name):
    changes = changes_of_a_save(scene, disk, state, name)
    for first in [index for index, (change, _) in enumerate(changes) if change in ("rename", "rmdir")]:
        for second in range(0, len(changes) + 10, 7):
            checkpoints = scene(name, f"{first}-{second}")
            attempt(checkpoints, disk, state(SAVED, variant=1), kill_at=first)
            attempt(checkpoints, disk, state(SAVED, variant=1), kill_at=second)
            check_old_or_new(checkpoints, same, name)
            check_tidy_after_another_save(checkpoints, state, same)


@pytest.mark.parametrize("failure", [(errno.ENOSPC, False), (errno.EROFS, True)], ids=["once", "for ever"])
def test_an_error_of_the_disk_at_every_change(scene, disk, state, same, failure):
    name, (code, forever) = "step saved again", failure
    changes = changes_of_a_save(scene, disk, state, name)
    for instant in range(len(changes)):
        checkpoints = scene(name, instant)
        try:
            saved = attempt(checkpoints, disk, state(SAVED, variant=1), fail_at=instant, code=code, forever=forever)
        except CheckpointError as error:
            message = str(error)
            assert f"{checkpoints.directory / 'step_4'}: " in message
            assert os.strerror(code) in message
            assert "needed" in message
            assert "free" in message
            tmp = checkpoints.directory / "step_4.tmp"
            assert not tmp.exists() or "tidying up failed too" in message
            assert forever or not tmp.exists()
            assert forever or (checkpoints.directory / "step_4").exists(), "the replaced one has its name again"
        else:
            # Only what follows the save itself may fail without failing it.
            assert checkpoints.load().values["variant"] == 1
            assert os.strerror(code) in saved.problems[0]
        check_old_or_new(checkpoints, same, name)
        check_tidy_after_another_save(checkpoints, state, same)


def test_everything_is_on_the_disk_before_it_gets_its_name(scene, disk, state):
    changes = changes_of_a_save(scene, disk, state, "step saved again")
    folder = next(path for change, path in changes if change == "mkdir")
    commit = changes.index(("rename", folder))
    made = [path for change, path in changes[:commit] if change == "open" and path.startswith(folder)]
    assert len(made) >= 5
    for path in made:
        assert ("fsync", path) in changes[:commit]
        last = max(index for index, change in enumerate(changes) if change == ("fsync", path))
        assert ("write", path) not in changes[last:]
    assert changes[commit - 2] == ("fsync", folder)
    assert changes[commit + 1] == ("fsync", os.path.dirname(folder))  # noqa: PTH120
    deletion = next(i for i, (change, path) in enumerate(changes) if change == "unlink" and "step_9" not in path)
    assert deletion > commit + 1


KILL_LOOP = """
import os, pathlib, random, signal, sys
import torch
from grpo.checkpoint.manager import CheckpointManager

def make():
    return CheckpointManager(pathlib.Path(sys.argv[1]), keep_latest=2, keep_top_k=1, metric_name="m",
        higher_is_better=True, fingerprint={}, max_shard_bytes=4096)

def tensors(step):
    return {name: torch.full((1000,), float(step)) for name in "abc"}

def save_for_ever(step, pipe):
    for name in ("write", "fsync", "mkdir", "rename", "unlink", "rmdir"):
        def wrapped(*arguments, real=getattr(os, name), tell=os.write):
            tell(pipe, b".")
            return real(*arguments)
        setattr(os, name, wrapped)
    while True:
        make().save(step, tensors(step), {"step": step}, {"m": 1.0})
        step += 1

torch.set_num_threads(1)
make().save(0, tensors(0), {"step": 0}, {"m": 2.0})
chance, last = random.Random(int(sys.argv[2])), 0
for round in range(12):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        save_for_ever(last + 1, writer)
    os.close(writer)
    wanted = chance.randrange(1, 120)
    while wanted > 0:
        wanted -= len(os.read(reader, wanted))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    found = make().load_latest()
    assert found.refused == (), found.refused
    step = found.loaded.step
    assert step >= last and found.loaded.values == {"step": step}
    assert all(torch.equal(found.loaded.tensors[name], tensor) for name, tensor in tensors(step).items())
    last = step
print("last", last)
"""


def test_real_kills_at_random_instants(tmp_path):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", KILL_LOOP, str(tmp_path / "c"), "7"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[1]) > 0
