"""The buffer by itself, and thousands of orders in which engine, verifiers, training and kills may act on it."""

import random

import pytest

from grpo.rollout.replay.buffer import ReplayBuffer
from tests.support.replay import group


def buffer(groups=2, age=1, updates=1):
    return ReplayBuffer(groups_per_step=groups, max_age_steps=age, updates_per_step=updates)


def start(made, remaining=None):
    positions = made.to_start(remaining)
    for position in positions:
        made.started(position)
    return positions


def positions(groups):
    return None if groups is None else [each.position for each in groups]


def test_as_many_are_started_as_can_be_trained_in_time():
    made = buffer(groups=3, age=2)
    assert start(made) == (0, 1, 2, 3, 4, 5, 6, 7, 8)
    assert start(made) == ()
    assert made.capacity == 9
    for position in range(3):
        made.finished(group(position))
    made.take(rest=False)
    assert start(made) == (), "the weights of the next step are not there yet"
    made.set_version(1)
    assert start(made) == (9, 10, 11)


def test_a_step_that_changes_no_weights_counts_as_well():
    made = buffer(groups=1, age=1)
    for position in range(6):
        start(made)
        made.finished(group(position))
        assert positions(made.take(rest=False)) == [position]
        made.set_version(0)


def test_several_updates_a_step_are_one_step_of_age():
    made = buffer(groups=1, age=1, updates=4)
    assert start(made) == (0, 1)
    made.finished(group(0))
    made.take(rest=False)
    assert start(made) == ()
    made.set_version(4)
    assert start(made) == (2,)
    assert [made.age(version) for version in (0, 1, 3, 4)] == [1, 1, 1, 0]


def test_no_more_than_the_loader_has():
    assert start(buffer(groups=3), remaining=2) == (0, 1)
    assert start(buffer(groups=3), remaining=0) == ()


def test_a_step_takes_whole_groups_the_oldest_first():
    made = buffer(groups=2, age=1)
    start(made)
    made.finished(group(3, (0, 0)))
    assert made.take(rest=False) is None
    made.finished(group(1, (0, 0)))
    assert positions(made.take(rest=False)) == [1, 3]
    made.set_version(1)
    start(made)
    made.finished(group(5, (1, 1)))
    made.finished(group(0, (0, 0)))
    made.finished(group(4, (1, 1)))
    assert made.take(rest=False) is None, "prompt 2 was started with weights that are as old as they may be"
    made.finished(group(2, (0, 0)))
    assert positions(made.take(rest=False)) == [0, 2]
    assert made.ready == 2


def test_a_step_waits_where_its_successors_would_come_too_late():
    made = buffer(groups=1, age=3)
    start(made)
    taken = []
    for version, position in enumerate((0, 2)):
        made.set_version(version)
        start(made)
        made.finished(group(position, (0, 0)))
        taken += positions(made.take(rest=False))
    made.set_version(2)
    start(made)
    made.finished(group(4, (1, 1)))
    assert made.take(rest=False) is None, "1 and 3 have one step left, and only one of them would fit into it"
    made.finished(group(3, (0, 0)))
    assert positions(made.take(rest=False)) == [3]


def test_the_oldest_token_gives_the_age():
    assert group(0, (5, 2, 4), rewards=(0, 0, 1)).oldest_version == 2


def test_the_rest_is_fewer():
    made = buffer(groups=3)
    start(made, remaining=1)
    assert made.take(rest=True) is None
    made.finished(group(0))
    assert made.take(rest=False) is None
    assert positions(made.take(rest=True)) == [0]
    assert made.empty


def test_what_is_given_up_makes_room():
    made = buffer(groups=2, age=1)
    assert start(made) == (0, 1, 2, 3)
    made.give_up(1)
    made.give_up(2)
    assert start(made) == (4, 5)


def test_a_resumed_buffer_starts_again_what_ran_and_keeps_what_waited():
    made = buffer(groups=2, age=1)
    start(made)
    made.finished(group(2))
    made.finished(group(0))
    made.give_up(1)
    values, ready = made.state()
    other = buffer(groups=2, age=1)
    other.load_state(values, ready)
    other.begin(0)
    assert start(other) == (3, 4)
    assert positions(other.take(rest=False)) == [0, 2]


def test_a_lowered_maximum_age_starts_old_groups_again():
    made = buffer(groups=1, age=3)
    start(made)
    made.finished(group(0, (0, 0)))
    made.take(rest=False)
    made.set_version(1)
    made.finished(group(1, (0, 0)))
    made.take(rest=False)
    made.set_version(2)
    made.finished(group(2, (0, 0)))
    values, ready = made.state()
    other = buffer(groups=1, age=1)
    other.load_state(values, ready)
    other.begin(2)
    assert other.ready == 0
    assert start(other) == (2, 3)


@pytest.mark.parametrize("change", [{"age": 1}, {"groups": 1}, {"updates": 1}, {"groups": 1, "age": 1}, {"groups": 9}])
@pytest.mark.parametrize("finished", [range(2, 12), range(2, 7), (4, 9)], ids=["all", "most", "few"])
def test_a_run_resumed_with_other_settings_trains_every_prompt_once_and_in_time(change, finished):
    before = {"groups": 2, "age": 5, "updates": 2}
    after = {**before, **change}
    made = buffer(**before)
    start(made)
    for position in (0, 1, *finished):
        made.finished(group(position, (0, 0)))
    trained = positions(made.take(rest=False))
    values, ready = made.state()
    other = buffer(**after)
    other.load_state(values, ready)
    version = before["updates"]
    other.begin(version)
    while len(trained) < 40:
        for position in start(other, 40 - other.drawn):
            other.finished(group(position, (version, version)))
        taken = other.take(rest=other.drawn == 40 and other.complete)
        assert taken, "waits for nothing"
        assert all(version - each.oldest_version <= after["age"] * after["updates"] for each in taken)
        trained += positions(taken)
        version += after["updates"]
        other.set_version(version)
    assert sorted(trained) == list(range(40))
    assert other.empty


class World:
    """Engine, verifiers, training and kills, one event at a time, in an order drawn from `seed`."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.draw = draw
        self.groups, self.age, self.updates = draw.randint(1, 4), draw.randint(1, 3), draw.choice([1, 1, 2, 4])
        self.total = draw.randint(1, 40)
        self.in_flight, self.rejects, self.kills = draw.random() < 0.5, draw.choice([0, 0, 0.3]), draw.choice([0, 0.05])
        self.buffer = buffer(self.groups, self.age, self.updates)
        self.version = 0
        self.engine: dict[int, list[int]] = {}  # versions of the completions' first tokens
        self.trained: list[int] = []
        self.given_up: list[int] = []
        self.saved = None
        self.save()

    def save(self):
        self.saved = (*self.buffer.state(), self.version, list(self.trained), list(self.given_up))

    def events(self):
        found = []
        if self.buffer.to_start(self.total - self.buffer.drawn):
            found.append(self.start)
        if self.engine:
            found.append(self.finish)
        if self.buffer.ready:
            found.append(self.train)
        return found

    def over(self):
        return self.buffer.drawn == self.total and self.buffer.empty

    def rest(self):
        return self.buffer.drawn == self.total and self.buffer.complete

    def start(self):
        for position in self.buffer.to_start(self.total - self.buffer.drawn):
            self.buffer.started(position)
            self.engine[position] = [self.version, self.version]

    def finish(self):
        position = self.draw.choice(list(self.engine))
        versions = self.engine.pop(position)
        if self.draw.random() < self.rejects:
            self.buffer.give_up(position)
            self.given_up.append(position)
            return
        late = [self.draw.randint(version, self.version) if self.in_flight else version for version in versions]
        self.buffer.finished(group(position, late))
        assert self.buffer.ready + len(self.buffer.running) <= self.buffer.capacity

    def train(self):
        taken = self.buffer.take(rest=self.rest())
        if taken is None:
            assert self.engine or self.buffer.to_start(self.total - self.buffer.drawn), "waits for nothing"
            return
        assert len(taken) == self.groups or self.rest()
        for each in taken:
            assert len(each.trajectories) == 2, "a partial group"
            assert self.version - each.oldest_version <= self.age * self.updates
            self.trained.append(each.position)
        self.version += self.updates
        self.buffer.set_version(self.version)
        if self.draw.random() < 0.5:
            self.save()

    def kill(self):
        values, ready, self.version, trained, given_up = self.saved
        self.trained, self.given_up = list(trained), list(given_up)
        self.engine = {}
        self.buffer = buffer(self.groups, self.age, self.updates)
        self.buffer.load_state(values, ready)
        self.buffer.begin(self.version)
        assert self.buffer.ready == len(ready), "what can be trained in time is not sampled again"

    def run(self):
        for _ in range(60 * self.total + 200):
            if self.over():
                return
            if self.draw.random() < self.kills:
                self.kills *= 0.7
                self.kill()
                continue
            events = self.events()
            assert events, "nothing can happen, and prompts are left"
            self.draw.choice(events)()
        raise AssertionError("no end")


@pytest.mark.parametrize("block", range(8))
def test_any_order_of_events_trains_or_gives_up_every_prompt_once_and_in_time(block):
    for seed in range(500 * block, 500 * (block + 1)):
        world = World(seed)
        world.run()
        assert sorted(world.trained + world.given_up) == list(range(world.total)), f"seed {seed}"


def test_what_is_put_back_waits_again_and_what_was_trained_does_not():
    made = buffer(groups=2, age=1)
    start(made)
    for position in range(4):
        made.finished(group(position))
    assert positions(made.take(rest=False)) == [0, 1]
    made.forget_taken()
    assert positions(made.take(rest=False)) == [2, 3]
    made.put_back()
    made.put_back()
    assert made.ready == 2
    assert positions(made.take(rest=False)) == [2, 3]
