"""Two ranks of one engine: the second acts on what the first has seen, never on more."""

import threading

import pytest
import torch.distributed as dist

from grpo.errors import GenerationError
from grpo.workers.generation import engine_loop
from grpo.workers.generation.engine_loop import EngineLoop
from grpo.workers.generation.lockstep import Alone, Lockstep, Seen
from grpo.workers.protocol import SamplingParams
from tests.support.ranks import run_cells
from tests.unit.workers.generation.test_engine_loop import LIMIT, Steps, collect, requests

SAMPLING = SamplingParams(max_new_tokens=4)


class Pair:
    """Joins two loops of one process as a broadcast joins two ranks."""

    def __init__(self):
        self._told = threading.Barrier(2, timeout=LIMIT)
        self._taken = threading.Barrier(2, timeout=LIMIT)
        self._seen = None

    def of(self, *, leads):
        pair = self

        class Rank:
            def __init__(self):
                self.leads = leads

            def agree(self, seen):
                if leads:
                    pair._seen = seen
                pair._told.wait()
                agreed = pair._seen
                pair._taken.wait()
                return agreed

        return Rank()


@pytest.fixture
def two():
    pair, engines = Pair(), (Steps(), Steps())
    loops = [
        EngineLoop(lambda engine=engine: engine, in_flight=True, together=pair.of(leads=leads))
        for engine, leads in zip(engines, (True, False), strict=True)
    ]
    yield engines, loops
    ended = [threading.Thread(target=loop.shutdown) for loop in loops]
    for each in ended:
        each.start()
    for each in ended:
        each.join(LIMIT)


def test_both_act_alike_whatever_the_order_in_which_calls_arrive(two):
    engines, (first, second) = two
    second.submit("a", requests(1), 1, SAMPLING)  # before the first rank knows of it
    update = threading.Thread(target=second.update_weights, args=([], 5))
    update.start()
    first.update_weights([], 5)
    first.submit("a", requests(1), 1, SAMPLING)
    update.join(LIMIT)
    for loop in (first, second):
        collect(loop, "a", 1)
    assert engines[0].log == engines[1].log == [("weights", 5), ("add", 1), ("done", 1)]


def test_what_does_not_arrive_at_the_other_rank_is_an_error(monkeypatch):
    monkeypatch.setattr(engine_loop, "_ARRIVAL_SECONDS", 0.05)

    class Ahead:
        leads = False

        def agree(self, seen):
            return Seen(seen.requests + 2, 1, closing=False)

    loop = EngineLoop(Steps, in_flight=True, together=Ahead())
    with pytest.raises(GenerationError, match="has had 2 requests and 1 updates, this one 0 and 0"):
        loop.finished("a", LIMIT)


def test_an_idle_first_rank_still_speaks(monkeypatch):
    monkeypatch.setattr(engine_loop, "HEARTBEAT_SECONDS", 0.01)
    spoken = threading.Semaphore(0)

    class Counting(Alone):
        def agree(self, seen):
            spoken.release()
            return seen

    loop = EngineLoop(Steps, in_flight=True, together=Counting())
    for _ in range(3):
        assert spoken.acquire(timeout=LIMIT)
    loop.shutdown()


def agree_on_a_rank(closing):
    together, rank = Lockstep(deadline_s=LIMIT), dist.get_rank()
    return together.leads, together.agree(Seen(10 + rank, rank, closing=closing))


def test_ranks_agree_on_what_the_first_has_seen():
    answers = run_cells(agree_on_a_rank, [False, True], world=2, preload=[__name__], seconds=LIMIT)
    for closing, answer in zip((False, True), answers, strict=True):
        assert answer == [(True, Seen(10, 0, closing)), (False, Seen(10, 0, closing))]
