import hashlib
import json

import pytest

from grpo.checkpoint.errors import DamagedCheckpoint, NewerCheckpoint, OtherModelCheckpoint
from grpo.checkpoint.layout import MANIFEST
from grpo.checkpoint.manifest import FileEntry, Manifest, PieceEntry, TensorEntry, canonical, check_fingerprint, read_manifest


def manifest(**changes):
    fields = {
        "step": 4,
        "sequence": 2,
        "metrics": {"accuracy": 0.1 + 0.2, "loss": float("inf")},
        "fingerprint": {"name": "ä", "shape": [1, 2]},
        "files": {"a.safetensors": FileEntry(bytes=3, sha256="0" * 64)},
        "tensors": {"x": TensorEntry(dtype="F32", shape=[2], pieces=[PieceEntry(file="a.safetensors", start=[0], stop=[2])])},
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
