import fcntl
import os
import shutil
import signal
import subprocess

import pytest
import torch

from grpo.checkpoint import files, manager, reading
from grpo.checkpoint.errors import DamagedCheckpoint, NewerCheckpoint, OtherModelCheckpoint
from grpo.checkpoint.layout import MANIFEST, MARKER, PIN
from grpo.checkpoint.signals import StopRequest
from grpo.errors import CheckpointError


def folders(directory):
    return sorted(entry.name for entry in directory.iterdir() if entry.is_dir())


def test_a_saved_checkpoint_comes_back_exactly(make_manager, state, same):
    checkpoints = make_manager()
    saved = checkpoints.save(*state(3))
    loaded = make_manager().load()
    assert saved.path == loaded.path == checkpoints.latest() == checkpoints.directory / "step_3"
    assert same(loaded)
    assert saved.problems == saved.removed == ()
    assert saved.bytes == sum(
        path.stat().st_size for path in saved.path.iterdir() if path.name not in (MANIFEST, MARKER)
    )
    assert len(list(saved.path.glob("*.safetensors"))) > 1


def test_making_a_manager_touches_nothing(make_manager):
    checkpoints = make_manager()
    assert checkpoints.latest() is None
    assert checkpoints.list() == []
    assert checkpoints.load_latest() == manager.LatestLoad(None, ())
    checkpoints.clean()
    assert not checkpoints.directory.exists()
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpoints.load()


def test_a_checkpoint_loads_by_path_from_anywhere(make_manager, state, same, tmp_path):
    path = make_manager().save(*state(3)).path
    shutil.move(path, tmp_path / "kept")
    assert same(make_manager().load(tmp_path / "kept"))


def test_saving_a_step_again_replaces_it_and_keeps_its_pin(make_manager, state):
    checkpoints = make_manager()
    path = checkpoints.save(*state(3)).path
    (path / PIN).touch()
    checkpoints.save(*state(3, variant=1))
    assert checkpoints.load().values["variant"] == 1
    assert (path / PIN).exists()
    assert folders(checkpoints.directory) == ["step_3"]


def test_newest_is_the_last_saved_not_the_highest_step(make_manager, state):
    checkpoints = make_manager(keep_latest=1, keep_top_k=0)
    checkpoints.save(*state(20))
    saved = checkpoints.save(*state(12))
    assert saved.removed == (checkpoints.directory / "step_20",)
    assert checkpoints.load().step == 12


def test_retention_keeps_latest_best_and_pinned(make_manager, state):
    checkpoints = make_manager(keep_latest=2, keep_top_k=1)
    for step in range(1, 7):
        saved = checkpoints.save(*state(step))
        if step == 3:
            (saved.path / PIN).touch()
    assert folders(checkpoints.directory) == ["step_1", "step_3", "step_5", "step_6"]
    assert [info.pinned for info in checkpoints.list()] == [False, True, False, False]


def flip_last_byte(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def replace(old, new):
    return lambda file: file.write_bytes(file.read_bytes().replace(old, new))


SHARD = "tensors-00000.safetensors"
DAMAGES = {  # what happens to which file, and whether sizes alone show it
    "truncated": (SHARD, lambda file: file.write_bytes(file.read_bytes()[:-1]), True),
    "longer": (SHARD, lambda file: file.write_bytes(file.read_bytes() + b"x"), True),
    "flipped": (SHARD, flip_last_byte, False),
    "missing": (SHARD, lambda file: file.unlink(), True),
    "foreign": (SHARD, lambda file: shutil.copy(file.parent.parent / "step_2" / SHARD, file), False),
    "values altered": ("values.json", replace(b"0.1", b"0.2"), False),
    "manifest altered": (MANIFEST, replace(b'"step": 3', b'"step": 4'), True),
    "manifest missing": (MANIFEST, lambda file: file.unlink(), True),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_taken(make_manager, state, same, damage):
    checkpoints = make_manager()
    for step in (1, 2, 3):
        path = checkpoints.save(*state(step)).path
    name, harm, seen_without_reading = DAMAGES[damage]
    file = path / name
    harm(file)
    for load in (checkpoints.load, lambda: checkpoints.load(path)):
        with pytest.raises(DamagedCheckpoint) as error:
            load()
        assert file.name in str(error.value)
        assert str(path) in str(error.value)
    found = checkpoints.load_latest()
    assert found.loaded.step == 2
    assert same(found.loaded)
    assert [item.path for item in found.refused] == [path]
    assert file.name in found.refused[0].reason
    assert checkpoints.latest() == (checkpoints.directory / "step_2" if seen_without_reading else path)


def test_damaged_ones_do_not_count_as_kept_and_are_not_deleted(make_manager, state):
    checkpoints = make_manager(keep_latest=2, keep_top_k=0)
    for step in (1, 2, 3):
        path = checkpoints.save(*state(step)).path
    (path / "values.json").unlink()
    checkpoints.save(*state(4))
    assert folders(checkpoints.directory) == ["step_2", "step_3", "step_4"]


def test_all_damaged_is_an_error_and_not_a_fresh_start(make_manager, state):
    checkpoints = make_manager()
    (checkpoints.save(*state(1)).path / "values.json").unlink()
    with pytest.raises(CheckpointError, match=r"none of the checkpoints.*\n.*values\.json"):
        checkpoints.load_latest()


def test_another_model_is_an_error_naming_each_difference_and_no_reason_to_fall_back(make_manager, state):
    make_manager().save(*state(1))
    mine = {"model": "tiny", "sizes": {"hidden": 8, "layers": 2}, "tied": True}
    make_manager(fingerprint=mine).save(*state(2))
    with pytest.raises(OtherModelCheckpoint) as error:
        make_manager().load_latest()
    assert "sizes.layers: 2 in the checkpoint, absent in this run" in str(error.value)
    assert "tied: true in the checkpoint, absent in this run" in str(error.value)
    assert "hidden" not in str(error.value)


def test_a_newer_format_is_refused_and_no_reason_to_fall_back(make_manager, state):
    checkpoints = make_manager()
    checkpoints.save(*state(1))
    path = checkpoints.save(*state(2)).path
    newer = reading.read_manifest(path).model_copy(update={"schema_version": 3})
    (path / MANIFEST).write_bytes(newer.to_json())
    with pytest.raises(NewerCheckpoint, match="schema_version 3"):
        checkpoints.load_latest()
    with pytest.raises(NewerCheckpoint, match="schema_version 3"):
        checkpoints.load(path)


def test_a_folder_that_is_no_checkpoint_is_refused_by_path(make_manager, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DamagedCheckpoint, match=r"manifest\.json is missing"):
        make_manager().load(tmp_path / "empty")
    with pytest.raises(DamagedCheckpoint, match="does not exist"):
        make_manager().load(tmp_path / "nowhere")


def test_foreign_folders_are_left_alone(make_manager, state, tmp_path):
    checkpoints = make_manager(keep_latest=1, keep_top_k=0)
    names = ["step_1", "step_2.tmp", "step_3.trash", "step_4.replaced", "step_05", "step_-1", "notes", "step_9x"]
    for name in names:
        (checkpoints.directory / name).mkdir(parents=True)
        (checkpoints.directory / name / "mine").write_text("x")
    (checkpoints.directory / "step_8").symlink_to(tmp_path)
    checkpoints.save(*state(6))
    checkpoints.save(*state(7))
    assert folders(checkpoints.directory) == sorted([*names, "step_7", "step_8"])
    assert [info.step for info in checkpoints.list()] == [7]
    for step in (1, 2, 8):
        with pytest.raises(CheckpointError, match=f"step_{step}.* is not a checkpoint; it is left alone"):
            checkpoints.save(*state(step))
    assert all((checkpoints.directory / name / "mine").exists() for name in names)


def test_what_kills_left_is_cleaned_by_the_next_save(make_manager, state):
    checkpoints = make_manager()
    for name in ("step_1.tmp", "step_2.trash"):
        (checkpoints.directory / name / "folder").mkdir(parents=True)
        (checkpoints.directory / name / "folder" / "part").touch()
        (checkpoints.directory / name / MARKER).touch()
    (checkpoints.directory / "step_3.tmp").mkdir()
    checkpoints.save(*state(5))
    assert folders(checkpoints.directory) == ["step_5"]


def test_a_replacement_cut_in_the_middle_still_loads_and_is_finished_by_clean(make_manager, state, same):
    checkpoints = make_manager()
    path = checkpoints.save(*state(5)).path
    path.rename(f"{path}.replaced")
    assert checkpoints.latest().name == "step_5.replaced"
    assert same(checkpoints.load())
    checkpoints.clean()
    assert folders(checkpoints.directory) == ["step_5"]
    assert same(checkpoints.load())


def test_retention_leaves_a_checkpoint_that_is_being_read(make_manager, state):
    checkpoints = make_manager(keep_latest=1, keep_top_k=0)
    path = checkpoints.save(*state(1)).path
    with files.locked(path / MANIFEST, exclusive=False):
        assert checkpoints.save(*state(2)).removed == ()
        assert path.exists()
    assert checkpoints.save(*state(3)).removed == (path, checkpoints.directory / "step_2")


def test_loading_holds_the_lock(make_manager, state, monkeypatch):
    checkpoints = make_manager(keep_latest=1, keep_top_k=0)
    checkpoints.save(*state(1))
    real, seen = reading.read_shards, []

    def read_while_saving(*arguments):
        seen.append(checkpoints.save(*state(2)).removed)
        return real(*arguments)

    monkeypatch.setattr(reading, "read_shards", read_while_saving)
    assert checkpoints.load().step == 1
    assert seen == [()]


def test_a_checkpoint_replaced_while_it_is_read_is_read_anew(make_manager, state, same, monkeypatch):
    checkpoints = make_manager()
    checkpoints.save(*state(1))
    real, calls = reading._check_sizes, []

    def replace_once(path, manifest):
        if not calls:
            calls.append(path)
            checkpoints.save(*state(1, variant=1))
        real(path, manifest)

    monkeypatch.setattr(reading, "_check_sizes", replace_once)
    loaded = checkpoints.load(checkpoints.directory / "step_1")
    assert loaded.values["variant"] == 1
    assert same(loaded)
    monkeypatch.undo()
    checkpoints.clean()
    assert folders(checkpoints.directory) == ["step_1"]


def test_a_checkpoint_being_deleted_is_refused(make_manager, state):
    checkpoints = make_manager()
    path = checkpoints.save(*state(1)).path
    with files.locked(path / MANIFEST, exclusive=True), pytest.raises(DamagedCheckpoint, match="being deleted"):
        checkpoints.load()


def test_two_processes_cannot_save_into_one_directory_at_once(make_manager, state):
    checkpoints = make_manager()
    checkpoints.save(*state(1))
    lock = files.locked(checkpoints.directory / ".lock", exclusive=True)
    with lock, pytest.raises(CheckpointError, match="another process is saving"):
        checkpoints.save(*state(2))
    checkpoints.save(*state(2))


def test_a_file_system_without_locks_still_saves_and_loads(make_manager, state, same, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    checkpoints = make_manager(keep_latest=1, keep_top_k=0)
    checkpoints.save(*state(1))
    checkpoints.save(*state(2))
    assert same(checkpoints.load())
    assert folders(checkpoints.directory) == ["step_2"]


def test_what_cannot_be_saved_is_refused_before_the_disk_is_touched(make_manager, state):
    checkpoints = make_manager()
    step, tensors, values, metrics = state(1)
    with pytest.raises(CheckpointError, match="'odd'"):
        checkpoints.save(step, tensors | {"odd": torch.zeros(1, dtype=torch.complex128)}, values, metrics)
    with pytest.raises(CheckpointError, match=r"values\['rng'\]\[1\] is a tuple"):
        checkpoints.save(step, tensors, values | {"rng": [1, (2,)]}, metrics)
    assert not checkpoints.directory.exists()


def test_too_little_space_is_refused_before_writing(make_manager, state, monkeypatch):
    checkpoints = make_manager()
    checkpoints.save(*state(1))
    usage = shutil.disk_usage(checkpoints.directory)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CheckpointError, match=r"step_2: needed \d+ bytes, free 1000 bytes"):
        checkpoints.save(*state(2))
    assert folders(checkpoints.directory) == ["step_1"]


def test_a_second_ctrl_c_in_a_save_leaves_the_earlier_checkpoint(make_manager, state, same, monkeypatch):
    checkpoints = make_manager()
    checkpoints.save(*state(1))
    write = os.write

    def interrupt(descriptor, data):
        signal.raise_signal(signal.SIGINT)
        return write(descriptor, data)

    with StopRequest() as stop:
        monkeypatch.setattr(os, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(*state(2))
        monkeypatch.undo()
    assert stop.requested == "SIGINT"
    assert folders(checkpoints.directory) == ["step_1", "step_2.tmp"]
    assert same(checkpoints.load_latest().loaded)
    checkpoints.save(*state(3))
    assert folders(checkpoints.directory) == ["step_1", "step_3"]


@pytest.fixture
def small_disk(tmp_path):
    """1 MiB in memory, really mounted."""
    target = tmp_path / "small"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(target)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs the program mount")
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a tmpfs: {mounted.stderr.strip()}")
    yield target
    subprocess.run(["umount", str(target)], check=True)


def test_a_disk_that_is_really_full_or_read_only(make_manager, state, same, small_disk, monkeypatch):
    checkpoints = make_manager(directory=small_disk / "checkpoints")
    checkpoints.save(*state(1))
    large = {f"w{index}": torch.zeros(2**16) for index in range(8)}
    with pytest.raises(CheckpointError, match=r"step_2: needed 2\d{6} bytes, free \d+ bytes"):
        checkpoints.save(2, large, {}, {})
    plenty = shutil.disk_usage(small_disk)._replace(free=2**40)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: plenty)
        with pytest.raises(CheckpointError, match="No space left on device"):
            checkpoints.save(2, large, {}, {})
    assert folders(checkpoints.directory) == ["step_1"]
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(CheckpointError, match=r"step_2.*Read-only file system"):
        checkpoints.save(*state(2))
    assert same(checkpoints.load_latest().loaded)
