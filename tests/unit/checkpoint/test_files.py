import hashlib
import os

import pytest

from grpo.checkpoint import files


@pytest.mark.parametrize("alone", [False, True])
def test_a_file_is_hashed_while_it_is_written(tmp_path, monkeypatch, alone):
    monkeypatch.setattr(files, "_CHUNK_BYTES_ALONE", 2**20)
    pieces = [b"", b"a", bytes(3 * 2**20), b"b" * (files.CHUNK_BYTES + 1)]
    written = files.write_file(tmp_path / "f", pieces, alone=alone)
    content = (tmp_path / "f").read_bytes()
    assert content == b"".join(pieces)
    assert (written.bytes, written.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert files.hash_file(tmp_path / "f") == written.sha256


@pytest.mark.parametrize("alone", [False, True])
def test_a_write_that_the_system_cuts_short_goes_on(tmp_path, monkeypatch, alone):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2 + 1]))
    files.write_file(tmp_path / "f", [bytes(range(256)) * 5], alone=alone)
    assert (tmp_path / "f").read_bytes() == bytes(range(256)) * 5


def test_an_existing_file_is_never_written_over(tmp_path):
    (tmp_path / "f").write_text("mine")
    with pytest.raises(FileExistsError):
        files.write_file(tmp_path / "f", [b"x"])
    assert (tmp_path / "f").read_text() == "mine"


def test_deleting_a_tree_spares_the_targets_of_links(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    tree = tmp_path / "tree"
    files.make_folder(tree / "a" / "b")
    (tree / "a" / "file").touch()
    (tree / "link").symlink_to(tmp_path / "kept")
    (tree / "dangling").symlink_to(tmp_path / "nowhere")
    files.remove_tree(tree)
    assert not tree.exists()
    assert (tmp_path / "kept" / "file").exists()


def test_a_tree_is_deleted_in_the_order_asked_for(tmp_path, disk):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("a", "m", "z"):
        (tree / name).touch()
    disk.start()
    files.remove_tree(tree, last=("m", "a"))
    assert [os.path.basename(path) for _, path in disk.log] == ["z", "m", "a", "tree"]  # noqa: PTH119


def test_many_may_share_a_lock_and_one_may_have_it_alone(tmp_path):
    path = tmp_path / "f"
    with files.locked(path, exclusive=True) as alone:
        assert alone is not None
        with files.locked(path, exclusive=False) as shared:
            assert shared is None
    with files.locked(path, exclusive=False) as first, files.locked(path, exclusive=False) as second:
        assert None not in (first, second)
        with files.locked(path, exclusive=True) as alone:
            assert alone is None


def test_a_lock_does_not_live_on_in_a_copy_of_its_descriptor(tmp_path):
    # A forked child holds such a copy, for as long as it lives.
    with files.locked(tmp_path / "f", exclusive=True) as descriptor:
        copy = os.dup(descriptor)
    try:
        with files.locked(tmp_path / "f", exclusive=True) as alone:
            assert alone is not None
    finally:
        os.close(copy)


@pytest.mark.parametrize("alone", [False, True])
def test_an_error_of_the_disk_while_it_is_set_to_work_early_is_raised(tmp_path, monkeypatch, alone):
    def fail(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "_FLUSHED_BYTES", 100)
    assert files.write_file(tmp_path / "f", [bytes(60)] * 9, alone=alone).bytes == 540
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        files.write_file(tmp_path / "g", [bytes(60)] * 9, alone=alone)
