import hashlib
import json

import pytest

from grpo.checkpoint.errors import DamagedCheckpoint, NewerCheckpoint, OtherModelCheckpoint
from grpo.checkpoint.layout import MANIFEST
from grpo.checkpoint.manifest import (
    FileEntry,
    Manifest,
    PieceEntry,
    Shards,
    TensorEntry,
    canonical,
    check_fingerprint,
    merged,
    read_manifest,
)
from grpo.errors import CheckpointError


def manifest(**changes):
    fields = {
        "step": 4,
        "sequence": 2,
        "metrics": {"accuracy": 0.1 + 0.2, "loss": float("inf")},
        "fingerprint": {"name": "ä", "shape": [1, 2]},
        "files": {"a.safetensors": FileEntry(bytes=3, sha256="0" * 64)},
        "tensors": {
            "x": TensorEntry(dtype="F32", shape=[2], pieces=[PieceEntry(file="a.safetensors", start=[0], stop=[2])])
        },
    }
    return Manifest(**fields | changes)


def test_it_comes_back_exactly(tmp_path):
    (tmp_path / MANIFEST).write_bytes(manifest().to_json())
    assert read_manifest(tmp_path) == manifest()


def test_every_flipped_byte_is_noticed_or_without_effect(tmp_path):
    content = manifest().to_json()
    refused = 0
    for index in range(len(content)):
        altered = bytearray(content)
        altered[index] ^= 4
        (tmp_path / MANIFEST).write_bytes(altered)
        try:
            unchanged = read_manifest(tmp_path) == manifest()
        except DamagedCheckpoint:
            refused += 1
        else:
            assert unchanged, index
    assert refused > 0.5 * len(content)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"null", b"\x80\x04K\x01.", b'{"format": "other"}'])
def test_another_file_of_that_name_is_refused(tmp_path, content):
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(DamagedCheckpoint, match=str(tmp_path / MANIFEST)):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"files": {"../a": {"bytes": 1, "sha256": "0" * 64}}, "tensors": {}}, "no plain file name"),
        ({"files": {"/etc/passwd": {"bytes": 1, "sha256": "0" * 64}}, "tensors": {}}, "no plain file name"),
        ({"files": {}}, "not listed"),
        ({"tensors": {"x": {"dtype": "F32", "shape": [], "pieces": [], "tied_to": "q"}}}, "not listed"),
        ({"step": "4"}, "step"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_sound_file_with_impossible_content_is_refused(tmp_path, changes, reason):
    body = json.loads(manifest().to_json()) | changes
    body.pop("sha256")
    (tmp_path / MANIFEST).write_text(json.dumps({"sha256": hashlib.sha256(canonical(body)).hexdigest(), **body}))
    with pytest.raises(DamagedCheckpoint, match=reason):
        read_manifest(tmp_path)


def test_a_newer_schema_is_told_from_an_altered_one(tmp_path):
    newer = manifest().model_copy(update={"schema_version": 7}).to_json()
    (tmp_path / MANIFEST).write_bytes(newer)
    with pytest.raises(NewerCheckpoint, match="schema_version 7; this grpo reads up to 2"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_bytes(newer.replace(b": 7", b": 8"))
    with pytest.raises(DamagedCheckpoint, match="altered"):
        read_manifest(tmp_path)


def test_fingerprints_are_compared_as_json(tmp_path):
    check_fingerprint(tmp_path, {"a": [1, 2], "b": {"c": None}}, {"a": (1, 2), "b": {"c": None}})
    with pytest.raises(OtherModelCheckpoint) as error:
        check_fingerprint(tmp_path, {"a": 1, "b": {"c": 2}, "e": {}}, {"a": 1.5, "b": {"c": 2, "d": "x"}, "e": {}})
    lines = str(error.value).splitlines()
    assert lines[1:3] == [
        "  a: 1 in the checkpoint, 1.5 in this run",
        '  b.d: absent in the checkpoint, "x" in this run',
    ]
    assert len(lines) == 4


def of_version_1(folder, **changes):
    body = json.loads(manifest().to_json())
    body.pop("sha256")
    stored = {"dtype": "F32", "shape": [2], "file": "a.safetensors", "tied_to": None}
    tensors = {"x": stored, "y": {**stored, "tied_to": "x"}, "n": {**stored, "shape": []}}
    body |= {"schema_version": 1, "tensors": tensors, **changes}
    (folder / MANIFEST).write_text(json.dumps({"sha256": hashlib.sha256(canonical(body)).hexdigest(), **body}))


def test_version_1_is_read_as_whole_pieces(tmp_path):
    of_version_1(tmp_path)
    found = read_manifest(tmp_path)
    piece = PieceEntry(file="a.safetensors", start=[0], stop=[2])
    assert found.tensors["x"] == TensorEntry(dtype="F32", shape=[2], pieces=[piece])
    assert found.tensors["y"] == TensorEntry(dtype="F32", shape=[2], tied_to="x")
    assert found.tensors["n"].pieces == [PieceEntry(file="a.safetensors", start=[], stop=[])]
    assert found.schema_version == 2


@pytest.mark.parametrize("tensors", [None, [], {"x": 1}, {"x": {}}, {"x": {"dtype": "F32", "shape": 3, "file": "a"}}])
def test_a_broken_version_1_is_refused(tmp_path, tensors):
    of_version_1(tmp_path, tensors=tensors)
    with pytest.raises(DamagedCheckpoint, match="not a valid manifest"):
        read_manifest(tmp_path)


def shards(file, *boxes, **entry):
    pieces = [PieceEntry(file=file, start=[first], stop=[end]) for first, end in boxes]
    entries = {"x": TensorEntry(**{"dtype": "F32", "shape": [4], "pieces": pieces} | entry)}
    return Shards({file: FileEntry(bytes=3, sha256="0" * 64)}, entries)


def test_what_the_ranks_have_written_is_put_together():
    found = merged([shards("a", (0, 1)), shards("b", (2, 4)), shards("c", (1, 2))])
    assert [piece.file for piece in found.tensors["x"].pieces] == ["a", "b", "c"]
    assert set(found.files) == set("abc")


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (shards("a", (2, 4)), "two processes have written a"),
        (shards("b", (1, 3)), "overlap"),
        (shards("b", (2, 3)), "its pieces have 3 elements"),
        (shards("b", (2, 4), dtype="F16"), r"disagree on tensor 'x': F32 \[4\] and F16"),
        (shards("b", (2, 4), shape=[5]), r"disagree on tensor 'x'"),
    ],
)
def test_ranks_that_do_not_fit_together_are_refused(other, reason):
    with pytest.raises(CheckpointError, match=reason):
        merged([shards("a", (0, 2)), other])
