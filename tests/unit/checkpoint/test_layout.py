import pytest

from grpo.checkpoint.layout import (
    MANIFEST,
    MARKER,
    free_trash,
    is_leftover,
    looks_like_checkpoint,
    step_folder,
    step_folders,
)
from grpo.errors import CheckpointError


def test_only_names_that_saving_makes_are_step_folders(tmp_path):
    ours = ["step_0", "step_12", "step_3.tmp", "step_4.trash", "step_4.trash.2", "step_5.replaced"]
    for name in ours:
        (tmp_path / name).mkdir()
    for name in ("step_", "step_01", "step_-1", "step_1.old", "step_1.tmp.tmp", "Step_1", "step_1 ", "step_\u0661",
                 "step_1.tmp.1", "step_1.trash.0"):  # fmt: skip
        (tmp_path / name).mkdir()
    (tmp_path / "step_7").touch()
    (tmp_path / "step_8").symlink_to(tmp_path)
    found = {(folder.step, folder.suffix) for folder in step_folders(tmp_path)}
    assert found == {(0, ""), (12, ""), (3, ".tmp"), (4, ".trash"), (5, ".replaced")}
    assert [folder.path.name for folder in step_folders(tmp_path)] == sorted(ours)
    assert all(folder.path.name.startswith(step_folder(tmp_path, folder.step, folder.suffix).name)
               for folder in step_folders(tmp_path))  # fmt: skip
    assert free_trash(tmp_path, 4) == tmp_path / "step_4.trash.1"
    assert free_trash(tmp_path, 3) == tmp_path / "step_3.trash"
    assert list(step_folders(tmp_path / "nowhere")) == []


@pytest.mark.parametrize(
    ("names", "checkpoint", "leftover"),
    [
        ([], False, True),
        ([MARKER], True, True),
        ([MARKER, "x"], True, True),
        ([MANIFEST], True, False),
        (["x"], False, False),
    ],
)
def test_whose_a_folder_is(tmp_path, names, checkpoint, leftover):
    for name in names:
        (tmp_path / name).touch()
    assert looks_like_checkpoint(tmp_path) == checkpoint
    assert is_leftover(tmp_path) == leftover


def test_a_file_where_the_folder_should_be_is_named(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "checkpoints"):
        with pytest.raises(CheckpointError, match=f"cannot read the checkpoint folder {place}: Not a directory"):
            list(step_folders(place))
