import pytest

from grpo.checkpoint.pins import pin, unpin
from grpo.errors import CheckpointError


def test_a_pinned_checkpoint_outlives_retention_until_it_is_unpinned(make_manager, state):
    checkpoints = make_manager(keep_latest=1, keep_top_k=0)
    first = checkpoints.save(*state(1)).path
    assert pin(first)
    assert not pin(first)
    checkpoints.save(*state(2))
    checkpoints.save(*state(3))
    assert [info.step for info in checkpoints.list()] == [1, 3]
    assert unpin(first)
    assert not unpin(first)
    assert checkpoints.prune() == ((first,), ())


def test_a_missing_checkpoint_and_a_disk_that_cannot_be_written_are_named(make_manager, state, disk):
    checkpoints = make_manager()
    with pytest.raises(CheckpointError, match=r"cannot pin .*step_1: No such file"):
        pin(checkpoints.directory / "step_1")
    first = checkpoints.save(*state(1)).path
    disk.start(fail_at=0, code=30)
    with pytest.raises(CheckpointError, match=r"cannot pin .*step_1: Read-only file system"):
        pin(first)
    assert not checkpoints.list()[0].pinned
