import pytest

from grpo.checkpoint.manager import CheckpointManager
from grpo.errors import CheckpointError
from grpo.trainer.held import HeldCheckpoints


def manager(directory):
    return CheckpointManager(
        directory, keep_latest=1, keep_top_k=0, metric_name="", higher_is_better=True, fingerprint={}
    )


def test_two_runs_do_not_share_a_folder_of_checkpoints(tmp_path):
    checkpoints = manager(tmp_path / "checkpoints")
    checkpoints.prepare()
    with HeldCheckpoints(checkpoints) as first, HeldCheckpoints(manager(checkpoints.directory)) as second:
        first.take()
        first.take()
        with pytest.raises(CheckpointError, match=r"another run writes to .*\(process \d+ on .*checkpoint_dir"):
            second.take_existing()
        first.check()
        first.release()
        second.take_existing()
    with HeldCheckpoints(checkpoints) as third:
        third.take()


def test_a_folder_that_does_not_exist_is_neither_made_nor_held(tmp_path):
    with HeldCheckpoints(manager(tmp_path / "none")) as held:
        held.take_existing()
    assert not (tmp_path / "none").exists()


def test_a_run_without_checkpoints_holds_nothing():
    with HeldCheckpoints(None) as held:
        held.take_existing()
        held.take()
        held.check()
        held.release()
