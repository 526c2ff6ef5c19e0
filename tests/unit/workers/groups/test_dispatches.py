import pytest

from grpo.workers.groups import dispatches
from grpo.workers.groups.dispatches import Dispatches


@pytest.fixture
def clock(monkeypatch):
    times = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(dispatches, "perf_counter", lambda: next(times))


def test_calls_their_seconds_and_what_was_not_the_workers_work(clock):
    counted = Dispatches()
    with counted.count() as dispatch:
        dispatch.work_seconds = 2.5
    with counted.count() as dispatch:
        dispatch.work_seconds = 0.75
    assert counted.take() == {"dispatches": 2, "dispatch_seconds": 4.0, "dispatch_overhead_seconds": 0.75}
    assert counted.take() == {"dispatches": 0, "dispatch_seconds": 0.0, "dispatch_overhead_seconds": 0.0}


def test_a_call_that_fails_counts(clock):
    counted = Dispatches()
    with pytest.raises(ZeroDivisionError), counted.count():
        raise ZeroDivisionError
    assert counted.take()["dispatches"] == 1
