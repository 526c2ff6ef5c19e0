"""Replicas that sample on: who gets a request, and whatever finishes where."""

from types import SimpleNamespace

import pytest

from grpo.errors import WorkerError
from grpo.placement.errors import PlacementError
from grpo.workers.generation import stream_group
from grpo.workers.generation.engine_start import Engines
from grpo.workers.generation.stream_group import StreamGroup
from grpo.workers.protocol import Completion, Finished, GroupRequest, SamplingParams
from tests.support.local_group import LocalGroup

SAMPLING = SamplingParams(max_new_tokens=10)


class ByHand:
    """Finishes what the test says; the other ranks of its engine say nothing, as theirs do."""

    def __init__(self, rank, *, at_once=False):
        self.rank, self.at_once = rank, at_once
        self.running, self.done, self.waits = {}, {"stream": [], "batch": []}, []
        self.version = 0
        self.failure = None

    def submit(self, owner, requests, num_completions, sampling):
        for request in requests:
            self.running[request.key] = (owner, num_completions)
            if self.at_once:
                self.finish(request.key)

    def finish(self, key):
        owner, count = self.running.pop(key)
        self.done[owner].append((key, [Completion([self.rank], [-0.5], "stop", self.version)] * count))

    def finished(self, owner, wait_s):
        self.waits.append(wait_s)
        if self.failure is not None:
            raise self.failure
        done, self.done[owner] = self.done[owner], []
        return Finished(done, 2.0 * len(done))

    def shutdown(self):
        pass


def group(ranks, *, at_once=False, timeout_s=20.0):
    workers = LocalGroup(ranks, lambda rank: ByHand(rank, at_once=at_once))
    return StreamGroup(Engines(workers, 1), timeout_s=timeout_s), workers.workers


def requests(*lengths, first=0):
    return [GroupRequest(first + at, (1,) * length, seed=at) for at, length in enumerate(lengths)]


def test_a_request_goes_where_least_is_to_be_done():
    streams, (one, two) = group(2)
    streams.submit(requests(100, 5, 6, 7), 2, SAMPLING)
    assert (list(one.running), list(two.running)) == ([0], [1, 2, 3])
    one.finish(0)
    assert [key for key, _ in streams.finished(1.0).groups] == [0]
    streams.submit(requests(1, 1, first=4), 2, SAMPLING)
    assert list(one.running) == [4, 5]


def test_engines_that_still_sample_are_ended_without_being_asked():
    workers = LocalGroup(2, ByHand)
    streams = StreamGroup(Engines(workers, 1), timeout_s=20.0)
    streams.submit(requests(5), 1, SAMPLING)
    streams.shutdown()
    assert workers.ended
    assert "shutdown" not in [method for method, _ in workers.calls]


def test_what_finishes_anywhere_is_returned_with_its_own_version_and_the_mean_of_their_work():
    streams, (one, two) = group(2)
    streams.submit(requests(5, 5, 5, 5), 1, SAMPLING)
    two.finish(1)
    one.version = two.version = 3
    one.finish(0)
    finished = streams.finished(1.0)
    assert {key: group[0].token_ids + group[0].token_versions for key, group in finished.groups} == {
        0: [0, 3], 1: [1, 0],
    }  # fmt: skip
    assert finished.busy_s == 2.0
    assert streams.finished(0.0).groups == []


def test_nobody_waits_for_a_replica_that_has_nothing_to_do():
    streams, (one, two) = group(2)
    streams.submit(requests(5), 1, SAMPLING)
    streams.finished(0.2)
    assert max(one.waits) > 0
    assert set(two.waits) == {0.0}


def test_a_batch_is_sampled_beside_the_stream():
    streams, workers = group(3, at_once=True)
    for worker in workers:
        worker.at_once = False
    streams.submit(requests(5, 5), 2, SAMPLING)
    for worker in workers:
        worker.at_once = True
    answers = streams.generate([[1] * 3, [1] * 4, [1] * 5, [1] * 6], 2, SAMPLING, [1, 2, 3, 4])
    assert [len(each) for each in answers] == [2] * 4
    assert len({each[0].token_ids[0] for each in answers}) > 1
    assert streams.finished(0.0).groups == []


def test_what_an_interrupted_batch_asked_for_is_not_anothers():
    streams, (engine,) = group(1)

    class GaveUpError(Exception):
        pass

    def interrupted(_owner, _wait_s):
        raise GaveUpError

    answer, engine.finished = engine.finished, interrupted
    with pytest.raises(GaveUpError):
        streams.generate([[1], [2]], 1, SAMPLING, [1, 2])
    engine.finished = answer
    for key in list(engine.running):
        engine.finish(key)
    engine.at_once = True
    assert len(streams.generate([[3]], 1, SAMPLING, [3])) == 1


def test_silence_is_an_error():
    streams, _ = group(2, timeout_s=-1.0)
    with pytest.raises(WorkerError, match="finished none of 2 requests"):
        streams.generate([[1], [2]], 1, SAMPLING, [1, 2])


def test_every_answer_gives_the_others_as_long_again(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(stream_group, "time", SimpleNamespace(monotonic=lambda: clock.now))
    streams, (engine,) = group(1, timeout_s=4.0)
    answer = engine.finished

    def every_fourth_time(owner, wait_s):
        clock.now += 1.5
        if clock.now % 6.0 == 0:
            engine.finish(max(engine.running))
        return answer(owner, wait_s)

    engine.finished = every_fourth_time
    assert len(streams.generate([[1], [2], [3]], 1, SAMPLING, [1, 2, 3])) == 3
    assert clock.now == 18.0


def test_a_replica_that_fails_is_heard_at_once():
    streams, (_, two) = group(2)
    streams.submit(requests(5, 5), 1, SAMPLING)
    two.failure = ZeroDivisionError("divided by nothing")
    with pytest.raises(ZeroDivisionError):
        streams.finished(1.0)


def test_it_never_sleeps():
    streams, _ = group(1)
    with pytest.raises(PlacementError, match="devices of its own"):
        streams.sleep(1)
    streams.wake(["weights"])
    assert set(streams.residences().values()) == {"gpu"}
    streams.shutdown()
