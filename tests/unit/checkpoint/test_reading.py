import math

import pytest

from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.checkpoint.reading import list_checkpoints, load_checkpoint, verify_checkpoint
from tests.support.version_1 import as_version_1

FINGERPRINT = {"model": "tiny", "sizes": {"hidden": 8}}


def test_listing_tells_what_lies_there(make_manager, state):
    checkpoints = make_manager(keep_latest=9)
    sizes = [checkpoints.save(*state(step)).bytes for step in (5, 3, 8)]
    (checkpoints.directory / "step_5" / "values.json").write_text("")
    (checkpoints.directory / "step_8" / "manifest.json").write_text("{}")
    infos = list_checkpoints(checkpoints.directory)
    assert [(info.step, info.sequence) for info in infos] == [(5, 0), (3, 1), (8, math.inf)]
    assert [info.bytes for info in infos] == [sizes[0], sizes[1], 0]
    assert "values.json" in infos[0].problem
    assert infos[1].problem is None
    assert infos[1].metrics == {"accuracy": 0.25}
    assert "manifest.json" in infos[2].problem


def test_verifying_reads_every_byte(make_manager, state):
    path = make_manager().save(*state(1)).path
    verify_checkpoint(path)
    for file in [*sorted(path.glob("*.safetensors")), path / "values.json"]:
        content = file.read_bytes()
        for index in (0, len(content) // 2, len(content) - 1):
            altered = bytearray(content)
            altered[index] ^= 1
            file.write_bytes(altered)
            with pytest.raises(DamagedCheckpoint, match=file.name):
                verify_checkpoint(path)
        file.write_bytes(content)
    verify_checkpoint(path)


def test_without_hashes_sizes_are_still_compared(make_manager, state):
    path = make_manager().save(*state(1)).path
    file = path / "tensors-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert load_checkpoint(path, FINGERPRINT, verify_hashes=False).step == 1
    file.write_bytes(content[:-1])
    with pytest.raises(DamagedCheckpoint, match="truncated"):
        load_checkpoint(path, FINGERPRINT, verify_hashes=False)


def test_loading_changes_nothing(make_manager, state, disk):
    path = make_manager().save(*state(1)).path
    disk.start()
    load_checkpoint(path, FINGERPRINT)
    make_manager().load_latest()
    assert disk.log == []


def test_no_pickle_is_written_or_read(make_manager, state):
    path = make_manager().save(*state(1)).path
    kinds = {file.suffix for file in path.iterdir()}
    assert kinds == {".safetensors", ".json", ""}
    assert (path / ".grpo-checkpoint").read_bytes() == b""


def test_checkpoints_of_version_1_load_and_stand_beside_new_ones(make_manager, state, same):
    checkpoints = make_manager()
    as_version_1(checkpoints.save(*state(1)).path)
    assert same(checkpoints.load())
    checkpoints.save(*state(2))
    assert [info.problem for info in checkpoints.list()] == [None, None]
    assert same(checkpoints.load(checkpoints.directory / "step_1"))
