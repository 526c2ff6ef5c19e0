import threading

import pytest

from grpo.errors import GenerationError
from grpo.refit.errors import PeerLostError
from grpo.workers.groups import calls
from grpo.workers.groups.calls import Call, in_thread, wait
from grpo.workers.groups.failures import RankError


class Group:
    def __init__(self):
        self.ended = threading.Event()

    def shutdown(self):
        self.ended.set()


def raising(error):
    def collect():
        raise error

    return collect


def until_ended(group, error):
    def collect():
        assert group.ended.wait(20)
        raise error

    return collect


def test_answers_come_in_the_order_of_the_calls():
    first, second = threading.Event(), Group()
    one = Call(Group(), lambda: [first.wait(20)])
    other = Call(second, lambda: (first.set(), ["b", "c"])[1])
    assert wait([one, other]) == [[True], ["b", "c"]]
    assert not second.ended.is_set()


def test_a_failure_ends_all_groups_without_waiting_for_the_others():
    failing, waiting = Group(), Group()
    cause = GenerationError("no")
    with pytest.raises(GenerationError) as raised:
        wait([Call(waiting, until_ended(waiting, ValueError())), Call(failing, raising(cause))])
    assert raised.value is cause
    assert failing.ended.is_set()
    assert waiting.ended.is_set()


@pytest.mark.parametrize("follows", [PeerLostError("gone"), RankError("rank 1: gone", rank=1, node="n", follows=True)])
def test_a_failure_that_follows_from_anothers_is_not_the_cause(follows):
    known = threading.Event()

    def later():
        assert known.wait(20)
        raise GenerationError("the cause")

    def first():
        known.set()
        raise follows

    with pytest.raises(GenerationError, match="the cause"):
        wait([Call(Group(), first), Call(Group(), later)])


def test_it_is_if_there_is_no_other(monkeypatch):
    monkeypatch.setattr(calls, "_GRACE_SECONDS", 0.05)
    waiting = Group()
    with pytest.raises(PeerLostError):
        wait([Call(Group(), raising(PeerLostError("gone"))), Call(waiting, until_ended(waiting, ValueError()))])
    assert waiting.ended.is_set()


def test_a_thread_gives_its_result_or_its_error():
    assert in_thread(lambda: 3).result(20) == 3
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 / 0).result(20)
