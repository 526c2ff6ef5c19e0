import platform

import pytest

from grpo.errors import GenerationError, WorkerError
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
