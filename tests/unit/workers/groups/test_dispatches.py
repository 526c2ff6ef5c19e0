import pytest

from grpo.workers.groups import dispatches
from grpo.workers.groups.dispatches import Dispatches


@pytest.fixture
def clock(monkeypatch):
    times = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(dispatches, "perf_counter", lambda: next(times))


def test_calls_their_seconds_and_what_was_not_the_workers_work(clock):
    counted = Dispatches()
    with counted.count("train") as dispatch:
        dispatch.rank_seconds = [2.5, 1.0]
    with counted.count("logprobs") as dispatch:
        dispatch.rank_seconds = [0.75]
    assert counted.take() == {"dispatches": 2, "dispatch_seconds": 4.0, "dispatch_overhead_seconds": 0.75}
    assert counted.take() == {"dispatches": 0, "dispatch_seconds": 0.0, "dispatch_overhead_seconds": 0.0}


def test_work_that_began_before_it_was_waited_for_hides_no_other_calls_overhead(clock):
    counted = Dispatches()
    with counted.count("refit_send") as dispatch:
        dispatch.rank_seconds = [9.0]
    with counted.count("train") as dispatch:
        dispatch.rank_seconds = [0.75]
    assert counted.take()["dispatch_overhead_seconds"] == 0.25


def test_a_call_that_fails_counts(clock):
    counted = Dispatches()
    with pytest.raises(ZeroDivisionError), counted.count("train"):
        raise ZeroDivisionError
    assert counted.take()["dispatches"] == 1
    assert counted.take_ranks() == {}


def test_the_seconds_of_each_rank_add_up_by_method():
    counted = Dispatches()
    for method, seconds in (("train", [1.0, 2.0]), ("logprobs", [0.5, 0.25]), ("train", [4.0, 8.0])):
        with counted.count(method) as dispatch:
            dispatch.rank_seconds = seconds
    assert counted.take_ranks() == {"train": [5.0, 10.0], "logprobs": [0.5, 0.25]}
    assert counted.take_ranks() == {}
