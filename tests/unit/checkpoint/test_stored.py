import io
import os
import pickle
import shutil
import zipfile

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo.checkpoint import files
from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.checkpoint.layout import MANIFEST
from grpo.checkpoint.manifest import FileEntry, merged, read_manifest
from grpo.checkpoint.pieces import Piece
from grpo.checkpoint.reading import load_checkpoint, open_checkpoint
from grpo.checkpoint.shards import plan_shards, write_shards
from grpo.checkpoint.stored import StoredTensors

WHOLE = torch.arange(7 * 5 * 2, dtype=torch.float32).view(7, 5, 2)
# Cut as by two tensor parallel ranks along dimension 1, and each again over three data parallel ones along dimension 0.
CUTS = [(rows, columns) for columns in ((0, 3), (3, 5)) for rows in ((0, 3), (3, 6), (6, 7))]
FINGERPRINT = {"model": "tiny", "sizes": {"hidden": 8}}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    shards = []
    for rank, ((row, last_row), (column, last_column)) in enumerate(CUTS):
        part = Piece("w", (7, 5, 2), (row, column, 0), WHOLE[row:last_row, column:last_column])
        pieces = [part, Piece.whole("step", torch.tensor(3.0))] if rank == 2 else [part]
        shards.append(write_shards(folder, plan_shards(pieces, prefix=f"rank_{rank}")))
    with StoredTensors(folder, merged(shards).tensors) as found:
        yield found


def bounds(size):
    return st.tuples(st.integers(0, size), st.integers(0, size)).map(lambda pair: slice(*pair))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(part=st.tuples(bounds(7), bounds(5), bounds(2)), dimensions=st.integers(1, 3))
def test_any_part_is_put_together_from_the_pieces(stored, part, dimensions):
    assert torch.equal(stored["w"][part[:dimensions]], WHOLE[part[:dimensions]])


def test_wholes_scalars_and_what_is_told_without_reading(stored):
    assert torch.equal(stored["w"][...], WHOLE)
    assert torch.equal(stored["w"][2:4], WHOLE[2:4])
    assert torch.equal(stored["step"][...], torch.tensor(3.0))
    assert (stored["w"].shape, stored["w"].dtype) == (WHOLE.shape, torch.float32)
    assert (stored["w"].get_shape(), stored["w"].get_dtype()) == ([7, 5, 2], "F32")
    assert list(stored) == ["w", "step"]


def test_an_open_checkpoint_stays_readable_and_keeps_retention_away(make_manager, state):
    checkpoints = make_manager(keep_latest=1, keep_top_k=0)
    path = checkpoints.save(*state(1)).path
    with checkpoints.open_latest() as found:
        assert checkpoints.save(*state(2)).removed == ()
        assert torch.equal(found.opened.tensors["weight"][...], state(1)[1]["weight"])
        assert torch.equal(found.opened.tensors["tied"][2:4], state(1)[1]["weight"][2:4])
    assert path in checkpoints.save(*state(3)).removed


def test_a_checkpoint_opened_by_another_process_needs_no_fingerprint(make_manager, state):
    path = make_manager().save(*state(1)).path
    with open_checkpoint(path, None, verify_hashes=False) as opened:
        assert opened.step == 1


class Payload:
    """What runs code when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def pickled(path):
    return pickle.dumps(Payload(path))


def as_torch_saves(path):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(path))
    return content.getvalue()


def replace_and_vouch(folder, name, content):
    """Put content into a file of a checkpoint, as one who also rewrites the manifest."""
    (folder / name).write_bytes(content)
    manifest = read_manifest(folder)
    entry = FileEntry(bytes=len(content), sha256=files.hash_file(folder / name))
    altered = manifest.model_copy(update={"files": {**manifest.files, name: entry}})
    (folder / MANIFEST).write_bytes(altered.to_json())


@pytest.mark.parametrize("content", [pickled, as_torch_saves])
@pytest.mark.parametrize("name", ["tensors-00000.safetensors", "values.json", MANIFEST])
def test_a_pickle_in_place_of_a_file_is_refused_and_never_run(make_manager, state, tmp_path, content, name):
    folder, ran = make_manager().save(*state(1)).path, tmp_path / "ran"
    if name == MANIFEST:
        (folder / name).write_bytes(content(ran))
    else:
        replace_and_vouch(folder, name, content(ran))
    with pytest.raises(DamagedCheckpoint, match=name):
        load_checkpoint(folder, FINGERPRINT)
    assert not ran.exists()


def test_a_pickle_beside_the_files_is_never_opened(make_manager, state, tmp_path):
    folder, ran = make_manager().save(*state(1)).path, tmp_path / "ran"
    for name in (".metadata", "common.pt", "__0_0.distcp", "pytorch_model.bin"):
        (folder / name).write_bytes(pickled(ran))
        (folder / name).chmod(0)
    assert load_checkpoint(folder, FINGERPRINT).step == 1
    assert not ran.exists()
    shutil.rmtree(folder)
    assert pickle.loads(pickled(ran)) is None  # noqa: S301  # of this test's own
    assert ran.exists(), "the payload is one that would have run"
