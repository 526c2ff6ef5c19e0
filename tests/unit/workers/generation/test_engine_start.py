"""Replicas of several ranks called as one: who answers, and what it is if they refuse."""

import pytest

from grpo.errors import GenerationError, WorkerError
from grpo.workers.generation.engine_rank import Refusal
from grpo.workers.generation.engine_start import Engines
from tests.support.local_group import LocalGroup


class Answering:
    def __init__(self, rank, refusing=()):
        self.rank, self.refusing = rank, refusing

    def ask(self, value):
        return (
            Refusal(GenerationError(f"rank {self.rank} says no")) if self.rank in self.refusing else (self.rank, value)
        )

    def shutdown(self):
        self.ended = True


def engines(*, size, refusing=()):
    group = LocalGroup(4, lambda rank: Answering(rank, refusing))
    return Engines(group, size), group


def test_each_replica_has_its_arguments_and_its_first_rank_answers():
    two, group = engines(size=2)
    assert two.replicas == 2
    assert two.call_each("ask", [("a",), ("b",)]) == [(0, "a"), (2, "b")]
    assert group.calls == [("ask", [("a",), ("a",), ("b",), ("b",)])]


def test_a_refusal_of_all_ranks_of_an_engine_is_raised_and_they_go_on():
    two, group = engines(size=2, refusing=(2, 3))
    with pytest.raises(GenerationError, match="rank 2 says no"):
        two.call("ask", 1)
    assert not group.ended


def test_ranks_that_disagree_are_ended():
    two, group = engines(size=2, refusing=(3,))
    with pytest.raises(WorkerError, match="1 of 2 ranks of engine 1 refused what the others did: rank 3 says no"):
        two.call("ask", 1)
    assert group.ended


def test_replicas_may_disagree():
    four, group = engines(size=1, refusing=(1,))
    with pytest.raises(GenerationError, match="rank 1 says no"):
        four.call("ask", 1)
    assert not group.ended


def test_engines_that_have_failed_are_not_asked_to_end():
    some, group = engines(size=1)
    group.shutdown()
    some.shutdown(at_once=False)
    assert group.calls == []


@pytest.mark.parametrize("at_once", [True, False])
def test_engines_end_before_their_processes_unless_they_are_busy(at_once):
    some, group = engines(size=1)
    some.shutdown(at_once=at_once)
    some.shutdown(at_once=at_once)
    assert [method for method, _ in group.calls] == ([] if at_once else ["shutdown"])
    assert group.ended
