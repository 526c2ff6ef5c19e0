import platform

import pytest

from grpo.errors import GenerationError, WorkerError
from grpo.workers.groups.calls import wait
from grpo.workers.groups.worker_group import InProcessGroup, WorkerGroup
from tests.support.group_workers import Ranked


@pytest.fixture
def group() -> WorkerGroup:
    return InProcessGroup(Ranked)


def test_calls_go_to_the_one_worker(group):
    assert group.world_size == 1
    assert group.hosts == [platform.node()]
    assert group.call_all("add", 1, 2) == [(0, 3)]
    assert group.call_each("add", [(3, 4)]) == [(0, 7)]
    assert group.call_one(0, "add", 5, 6) == (0, 11)
    taken = group.dispatches.take()
    assert taken["dispatches"] == 3
    assert taken["dispatch_overhead_seconds"] < taken["dispatch_seconds"]


def test_what_is_called_beside_is_not_counted(group):
    assert group.call_beside("add", 1, 2) == [(0, 3)]
    with pytest.raises(GenerationError, match="rather not"):
        group.call_beside("refuse_at", 0)
    assert group.dispatches.take()["dispatches"] == 0


def test_calls_that_were_begun_are_waited_for_together(group):
    other = InProcessGroup(Ranked)
    begun = [group.begin_all("add", 1, 2), other.begin_each("add", [(3, 4)]), other.begin_all("add", 5, 6, beside=True)]
    assert wait(begun) == [[(0, 3)], [(0, 7)], [(0, 11)]]
    with pytest.raises(GenerationError, match="rather not"):
        wait([group.begin_all("add", 1, 2), other.begin_all("refuse_at", 0)])
    assert group.ended
    assert other.ended


def test_exceptions_pass_as_they_are(group):
    with pytest.raises(GenerationError, match=r"^I would rather not$"):
        group.call_all("refuse_at", 0)
    with pytest.raises(GenerationError, match="rank 0 does not like to start"):
        InProcessGroup(Ranked, None, 1.0, 0)


def test_other_ranks_and_other_numbers_of_arguments_are_faults(group):
    with pytest.raises(AssertionError):
        group.call_one(1, "add", 1, 2)
    with pytest.raises(ValueError, match="too many"):
        group.call_each("add", [(1, 2), (3, 4)])


def test_after_the_end_nothing_can_be_asked(group):
    group.shutdown()
    group.shutdown()
    with pytest.raises(WorkerError, match="add was called after"):
        group.call_all("add", 1, 2)
    with pytest.raises(WorkerError, match="add was called after"):
        group.call_beside("add", 1, 2)
