"""The real source, collector and buffer under a clock of their own, in thousands of orders of events.

Nothing here waits: where the run would, the clock goes on to what happens next. Each order has an engine whose groups
take heavy-tailed times, updates that come while it samples, training of any length, and at most one fault. Every one
must end with all prompts trained, or with the fault's own error within the deadline.
"""

from __future__ import annotations

import math
import random
from statistics import fmean
from types import SimpleNamespace

import pytest

from grpo.config.schema import Grpo
from grpo.data.loader import PromptLoader
from grpo.errors import GenerationError, RewardError
from grpo.rollout.replay import collector, source
from grpo.rollout.replay.source import ReplaySource
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.protocol import Completion, Finished, SamplingParams
from tests.support.rollouts import ChosenScorer, prompt

DEADLINE = 30.0
FAULTS = (None, None, "straggler", "dead engine", "failed verifier", "slow training")


class Clock:
    """Turns of the collector are what happens while the run waits or trains."""

    def __init__(self):
        self.now = 0.0
        self.until = math.inf  # when the run acts next, if nothing is heard
        self.turn, self.turns = None, 0
        self.alive = True

    def perf_counter(self):
        return self.now

    def pass_to(self, moment):
        self.now = max(self.now, min(moment, self.until))

    def run_until(self, moment, heard=lambda: False):
        self.until = moment
        while self.now < moment and not heard():
            self.turns += 1
            assert self.turns < 100_000, "the clock stands still"
            self.alive = self.alive and self.turn()
            if not self.alive and not heard():
                self.now = moment  # a thread that has ended does nothing
        self.until = math.inf


class Condition:
    """As `threading.Condition`, without a second thread: who waits lets the clock run."""

    def __init__(self, clock):
        self.clock, self.depth = clock, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def notify_all(self):
        pass

    def wait_for(self, predicate, timeout):
        if self.clock.until < math.inf:  # the collector has nothing to do until the run acts
            self.clock.pass_to(self.clock.now + timeout)
            return predicate()
        self.clock.run_until(self.clock.now + timeout, lambda: bool(predicate()))
        return bool(predicate())


class Engine:
    def __init__(self, draw, clock, fault):
        self.draw, self.clock, self.weight_version = draw, clock, 0
        self.ends: dict[int, tuple[float, int]] = {}
        self.lost = draw.randrange(12) if fault == "straggler" else None
        self.dies = draw.uniform(0, 60) if fault == "dead engine" else math.inf

    def submit(self, requests, num_completions, sampling):
        for request in requests:
            seconds = math.inf if request.key == self.lost else 0.1 + self.draw.weibullvariate(1.0, 0.7)
            self.ends[request.key] = (self.clock.now + min(seconds, 0.8 * DEADLINE if seconds < math.inf else seconds),
                                      self.weight_version)  # fmt: skip

    def finished(self, wait_s):
        nearest = min((end for end, _ in self.ends.values()), default=math.inf)
        self.clock.pass_to(min(nearest, self.clock.now + wait_s))
        if self.clock.now >= self.dies:
            raise GenerationError("the engine died")
        done = [key for key, (end, _) in self.ends.items() if end <= self.clock.now]
        groups = []
        for key in done:
            version = self.ends.pop(key)[1]
            newer = ((1, self.weight_version),) if self.weight_version > version else ()
            groups.append((key, [Completion([3, 1], [-0.5, -1.0], "stop", version, newer) for _ in range(2)]))
        return Finished(groups, busy_s=0.1)


class Order:
    """One run."""

    def __init__(self, seed, monkeypatch):
        draw = random.Random(seed)
        self.fault = draw.choice(FAULTS)
        self.clock, self.total, self.trained = Clock(), draw.randint(1, 30), []
        self.age, self.per_step = draw.randint(1, 3), draw.randint(1, 4)
        self.slow = draw.choice([0.1, 1.0, 5.0]) if self.fault != "slow training" else 4 * DEADLINE
        self.draw = draw
        self.engine = Engine(draw, self.clock, self.fault)
        fails_at = draw.randrange(12) if self.fault == "failed verifier" else None

        def reward(group, place):
            if group == fails_at:
                raise RewardError("the verifier failed")
            return float(place)

        monkeypatch.setattr(collector, "time", self.clock)
        monkeypatch.setattr(source, "time", self.clock)
        monkeypatch.setattr(
            collector, "threading",
            SimpleNamespace(Condition=lambda: Condition(self.clock), Thread=lambda **_: SimpleNamespace(
                start=lambda: None, join=lambda _: None)),
        )  # fmt: skip
        grpo = {
            "num_prompts_per_step": self.per_step, "num_generations_per_prompt": 2,
            "async_grpo": {"enabled": True, "max_trajectory_age_steps": self.age},
        }  # fmt: skip
        self.source = ReplaySource(
            PromptLoader([prompt(n) for n in range(self.total)], seed=1, shuffle=True, max_epochs=1), self.engine,
            ChosenScorer(reward), SamplingParams(max_new_tokens=4), Grpo.model_validate(grpo), updates_per_step=1,
            deadline_s=DEADLINE,
        )  # fmt: skip
        self.clock.turn = self.source._collector._turn

    def run(self):
        """How it ended, and the longest that a step waited."""
        longest = 0.0
        while True:
            began = self.clock.now
            try:
                timer = PhaseTimer(clock=lambda: self.clock.now)
                with timer.step():
                    rollout = self.source.next_rollout(timer)
            except (GenerationError, RewardError) as error:
                return str(error), max(longest, self.clock.now - began)
            longest = max(longest, self.clock.now - began)
            if rollout is None:
                assert self.source.exhausted
                return None, longest
            self.check(rollout)
            self.clock.run_until(self.clock.now + self.draw.uniform(0, self.slow))
            self.engine.weight_version += 1

    def check(self, rollout):
        groups = [each.group_id for each in rollout.trajectories]
        assert groups == [each for each in groups[::2] for _ in range(2)], "a partial group"
        version = self.engine.weight_version
        oldest = min(each.completion.weight_version for each in rollout.trajectories)
        assert version - oldest == rollout.metrics["rollout/age_steps_max"] <= self.age
        mixed = [len(set(each.completion.token_versions)) > 1 for each in rollout.trajectories]
        assert rollout.metrics["rollout/mixed_version_fraction"] == fmean(mixed)
        full = (self.age + 1) * self.per_step
        assert rollout.metrics["rollout/buffer_groups"] + rollout.metrics["rollout/running_groups"] <= full
        assert len(groups) == 2 * self.per_step or len(self.trained) + len(groups) // 2 == self.total
        self.trained += groups[::2]


@pytest.mark.parametrize("block", range(4))
def test_every_order_ends_in_progress_or_in_its_faults_own_error_within_the_deadline(block, monkeypatch):
    ends = set()
    for seed in range(300 * block, 300 * (block + 1)):
        order = Order(seed, monkeypatch)
        error, longest = order.run()
        assert longest <= 2 * DEADLINE, f"seed {seed}"
        assert len(set(order.trained)) == len(order.trained), f"seed {seed}"
        if error is None:
            assert sorted(order.trained) == list(range(order.total)), f"seed {seed}"
        else:
            words = {
                "straggler": "no group finished within 30 s", "dead engine": "the engine died",
                "failed verifier": "the verifier failed",
            }  # fmt: skip
            assert words[order.fault] in error, f"seed {seed}"
        ends.add((order.fault, error is None))
    assert {(fault, False) for fault in ("straggler", "dead engine", "failed verifier")} <= ends
    assert {(None, True), ("slow training", True)} <= ends


def test_an_engine_that_is_kept_waiting_by_training_starves_and_says_so(monkeypatch):
    """A full buffer: nothing is started until training takes from it, and then it goes on."""
    seed = next(seed for seed in range(100) if _is(seed, "slow training"))
    order = Order(seed, monkeypatch)
    found = []
    check = order.check

    def watched(rollout):
        found.append(rollout.metrics["rollout/engine_starved_s"])
        check(rollout)

    order.check = watched
    assert order.run()[0] is None
    assert max(found) > DEADLINE / 2


def _is(seed, fault):
    draw = random.Random(seed)
    return draw.choice(FAULTS) == fault and draw.randint(1, 30) > 20
