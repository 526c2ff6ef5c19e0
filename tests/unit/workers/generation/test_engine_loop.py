import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from grpo.errors import GenerationError
from grpo.workers.generation import engine_loop
from grpo.workers.generation.engine_loop import BatchEngine, EngineLoop
from grpo.workers.protocol import Completion, GroupRequest, SamplingParams
from tests.support.rollouts import RecordingGenerator

LIMIT = 20.0
SAMPLING = SamplingParams(max_new_tokens=4)


class Steps:
    """A `SteppedEngine` that finishes one request a step, when the test lets it."""

    def __init__(self, *, held=False):
        self.go = threading.Event()
        if not held:
            self.go.set()
        self.stepping = threading.Event()
        self.requests = []
        self.weight_version = 0
        self.log = []
        self.threads = {threading.current_thread().name}
        self.failure = None

    @property
    def pending(self):
        return len(self.requests)

    def add(self, request, num_completions, sampling):
        self.log.append(("add", request.key))
        self.requests.append((request, num_completions))

    def step(self):
        self.threads.add(threading.current_thread().name)
        self.stepping.set()
        assert self.go.wait(LIMIT)
        if self.failure:
            raise self.failure
        request, count = self.requests.pop(0)
        self.log.append(("done", request.key))
        return [(request.key, [Completion([1], [-0.5], "stop", self.weight_version)] * count)]

    def update_weights(self, weights, version):
        if any(name == "wrong" for name, _ in weights):
            raise GenerationError("unknown weight wrong")
        self.log.append(("weights", version))
        self.weight_version = version

    def shutdown(self):
        self.log.append(("shutdown", None))


@pytest.fixture
def loops(monkeypatch):
    """Loops that nothing but a wake lets look up."""
    monkeypatch.setattr(engine_loop, "HEARTBEAT_SECONDS", 100 * LIMIT)
    made = []

    def make(engine, *, in_flight=False):
        loop = EngineLoop(engine if callable(engine) else lambda: engine, in_flight=in_flight)
        made.append(loop)
        return loop

    yield make
    for loop in made:
        loop.shutdown()


def requests(*keys):
    return [GroupRequest(key, (1, 2), seed=key) for key in keys]


def within(call):
    """What `call` returns, if whatever it waits for wakes it in time."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future.result(LIMIT)


def collect(loop, owner, count):
    found = {}
    while len(found) < count:
        groups = within(lambda: loop.finished(owner, 10 * LIMIT)).groups
        assert groups, "nothing finished in time"
        found.update(groups)
    return found


def test_every_owner_gets_its_own(loops):
    loop = loops(Steps())
    loop.submit("a", requests(1, 2), 3, SAMPLING)
    loop.submit("b", requests(-1), 2, SAMPLING)
    assert {key: len(each) for key, each in collect(loop, "b", 1).items()} == {-1: 2}
    assert {key: len(each) for key, each in collect(loop, "a", 2).items()} == {1: 3, 2: 3}
    assert loop.finished("a", 0.0).groups == []


def test_every_second_of_its_work_is_told_once_to_each_that_has_requests(loops):
    loop = loops(Steps())
    loop.submit("a", requests(1), 1, SAMPLING)
    collect(loop, "a", 1)
    loop.submit("a", requests(1, 2), 1, SAMPLING)
    loop.submit("b", requests(3), 1, SAMPLING)
    assert within(lambda: loop.finished("b", 10 * LIMIT)).busy_s > 0
    assert loop.finished("b", 0.0).busy_s == 0
    assert within(lambda: loop.finished("a", 10 * LIMIT)).busy_s > 0, "what another has asked for is not lost"
    assert loop.finished("c", 0.0).busy_s == 0


def test_weights_in_flight_come_between_two_steps(loops):
    engine = Steps(held=True)
    loop = loops(engine, in_flight=True)
    loop.submit("a", requests(1, 2, 3), 1, SAMPLING)
    assert engine.stepping.wait(LIMIT)
    update = _thread(lambda: loop.update_weights([("w", torch.ones(1))], 5))
    _until(lambda: loop._update is not None)
    engine.go.set()
    update.join(LIMIT)
    found = collect(loop, "a", 3)
    assert [found[key][0].weight_version for key in (1, 2, 3)] == [0, 5, 5]


def test_otherwise_weights_wait_for_what_is_sampled_and_what_comes_later_waits_for_them(loops):
    engine = Steps(held=True)
    loop = loops(engine)
    loop.submit("a", requests(1, 2), 1, SAMPLING)
    assert engine.stepping.wait(LIMIT)
    update = _thread(lambda: loop.update_weights([("w", torch.ones(1))], 5))
    _until(lambda: loop._update is not None)
    loop.submit("a", requests(3), 1, SAMPLING)
    engine.go.set()
    update.join(LIMIT)
    found = collect(loop, "a", 3)
    assert [found[key][0].weight_version for key in (1, 2, 3)] == [0, 0, 5]


def test_refused_weights_are_the_senders_error_and_sampling_goes_on(loops):
    loop = loops(Steps())
    with pytest.raises(GenerationError, match="unknown weight wrong"):
        loop.update_weights([("wrong", torch.ones(1))], 1)
    loop.submit("a", requests(1), 1, SAMPLING)
    assert collect(loop, "a", 1)[1][0].weight_version == 0


def test_what_ends_the_thread_reaches_everybody(loops):
    engine = Steps(held=True)
    loop = loops(engine)
    loop.submit("a", requests(1), 1, SAMPLING)
    assert engine.stepping.wait(LIMIT)
    engine.failure = RuntimeError("illegal address")
    waiting = ThreadPoolExecutor(1).submit(loop.finished, "a", 10 * LIMIT)
    _until(lambda: loop._changed._waiters)
    engine.go.set()
    with pytest.raises(RuntimeError, match="illegal address"):
        waiting.result(LIMIT)
    for ask in (
        lambda: loop.finished("a", 10 * LIMIT),
        lambda: loop.submit("a", requests(2), 1, SAMPLING),
        lambda: loop.update_weights([], 1),
    ):
        with pytest.raises(RuntimeError, match="illegal address"):
            within(ask)
    assert engine.log[-1] == ("shutdown", None)


def test_an_engine_that_does_not_start_is_an_error_at_once():
    def fail():
        raise GenerationError("no such model")

    with pytest.raises(GenerationError, match="no such model"):
        EngineLoop(fail, in_flight=False)


def test_nobody_waits_without_a_deadline():
    never = threading.Event()
    with pytest.raises(GenerationError, match=r"did not start within 0.01 s"):
        EngineLoop(lambda: never.wait(LIMIT), in_flight=False, deadline_s=0.01)
    engine = Steps(held=True)
    loop = EngineLoop(lambda: engine, in_flight=False, deadline_s=0.5)
    loop.submit("a", [GroupRequest(0, (1,), 0)], 1, SAMPLING)
    assert engine.stepping.wait(LIMIT)
    with pytest.raises(GenerationError, match=r"did not take weights 3 within 0.5 s"):
        loop.update_weights([], 3)
    never.set()
    engine.go.set()
    loop.shutdown()


def test_one_thread_makes_and_runs_the_engine(loops):
    made = []

    def make():
        made.append(Steps())
        return made[0]

    loop = loops(make)
    loop.submit("a", requests(1), 1, SAMPLING)
    collect(loop, "a", 1)
    assert made[0].threads == {"engine-loop"}
    loop.shutdown()
    loop.shutdown()
    with pytest.raises(GenerationError, match="has ended"):
        loop.submit("a", requests(2), 1, SAMPLING)


def test_a_batch_engine_samples_what_is_alike_together():
    generator = RecordingGenerator()
    engine = BatchEngine(generator)
    other = SamplingParams(max_new_tokens=9)
    for request, count, sampling in zip(
        requests(0, 1, 2, 3), (2, 2, 1, 2), (SAMPLING, SAMPLING, SAMPLING, other), strict=True
    ):
        engine.add(request, count, sampling)
    assert engine.pending == 4
    assert [(key, len(each)) for key, each in engine.step()] == [(0, 2), (1, 2)]
    assert [(key, len(each)) for key, each in engine.step()] == [(2, 1)]
    assert [(key, len(each)) for key, each in engine.step()] == [(3, 2)]
    assert engine.pending == 0
    assert [seeds for *_, seeds in generator.calls] == [[0, 1], [2], [3]]


def _thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def _until(holds):
    waiting = threading.Event()
    for _ in range(int(LIMIT / 0.01)):
        if holds():
            return
        waiting.wait(0.01)
    raise AssertionError("it never came")
