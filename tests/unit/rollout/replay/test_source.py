"""Collector and source with an engine that finishes what the test says, in threads as in a run."""

import json
import threading

import pytest

from grpo.config.schema import Grpo
from grpo.data.loader import PromptLoader
from grpo.errors import CheckpointError, GenerationError, RewardError
from grpo.rollout.on_demand import DynamicSamplingError, OnDemandSource
from grpo.rollout.replay import collector
from grpo.rollout.replay.source import ReplaySource
from grpo.rollout.seeds import sampling_seed
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.protocol import Replay, SamplingParams
from tests.support.replay import LIMIT, HandDrivenEngine
from tests.support.rollouts import ChosenScorer, prompt


@pytest.fixture
def made(monkeypatch):
    """Sources whose threads do nothing unless they are woken, and end when they are told to."""
    monkeypatch.setattr(collector, "_IDLE_SECONDS", 100 * LIMIT)
    sources = []

    def make(
        *, count=12, epochs=1, scorer=None, deadline_s=10 * LIMIT, engine=None, updates_per_step=1, replay=None, **grpo
    ):
        settings = {"num_prompts_per_step": 3, "num_generations_per_prompt": 2, **grpo}
        engine = engine or HandDrivenEngine()
        source = ReplaySource(
            PromptLoader([prompt(n) for n in range(count)], seed=1, shuffle=False, max_epochs=epochs), engine,
            scorer or ChosenScorer(lambda _group, place: float(place)), SamplingParams(max_new_tokens=4, replay=replay),
            Grpo.model_validate(settings), updates_per_step=updates_per_step, deadline_s=deadline_s,
        )  # fmt: skip
        sources.append(source)
        return source, engine

    yield make
    for source in sources:
        source.close()
        thread = source._collector._thread
        assert thread is None or not thread.is_alive()


def draw(source):
    timer = PhaseTimer()
    with timer.step() as times:
        rollout = source.next_rollout(timer)
    return rollout, times


def groups(rollout):
    return [each.group_id for each in rollout.trajectories]


def test_a_step_has_whole_groups_and_the_engine_goes_on(made):
    source, engine = made()
    first = _in_thread(lambda: draw(source))
    assert engine.wait_for(6) == [0, 1, 2, 3, 4, 5]
    engine.finish(4, 1, 0)
    rollout, times = first()
    assert groups(rollout) == [0, 0, 1, 1, 4, 4]
    assert (rollout.generated_samples, rollout.generated_tokens, rollout.prompt_tokens) == (6, 12, 18)
    assert rollout.metrics["rollout/engine_busy_s"] == 1.5
    assert rollout.metrics["rollout/age_steps_max"] == 0
    assert times["timing/generation"] > 0
    assert times["timing/rewards"] == 0
    engine.weight_version = 1
    second = _in_thread(lambda: draw(source))
    assert engine.wait_for(9)[6:] == [6, 7, 8]
    engine.finish(6, 7, 8, version=1)
    engine.finish(2, 3, 5, version=0)
    rollout, _ = second()
    assert groups(rollout) == [2, 2, 3, 3, 5, 5]
    assert rollout.metrics["rollout/age_steps_max"] == 1
    assert (rollout.generated_samples, rollout.generated_tokens, rollout.prompt_tokens) == (12, 24, 36)
    assert rollout.metrics["rollout/engine_busy_s"] == 3.0


def test_every_prompt_has_a_seed_of_its_own_which_a_resumed_run_uses_again(made):
    source, engine = made()
    waiting = _in_thread(lambda: draw(source))
    engine.finish(0, 1, 2)
    waiting()
    assert engine.seeds == {position: sampling_seed(source._grpo.seed, "train", position) for position in range(6)}
    tensors, values = source.state()
    source.close()
    other, again = made()
    other.load_state(tensors, values)
    other._collector.start(0)
    again.wait_for(3)
    assert {position: again.seeds[position] for position in (3, 4, 5)}.items() <= engine.seeds.items()


def test_a_replayed_length_is_an_end_and_the_limit_is_none(made):
    for limit in (8, 2):
        source, engine = made(replay=Replay((2,), 3 + limit))
        waiting = _in_thread(lambda source=source: draw(source))
        engine.finish(0, 1, 2, reason="length")
        trajectories = waiting()[0].trajectories
        assert {each.truncated for each in trajectories} == {limit == 2}


def test_the_prompts_end(made):
    source, engine = made(count=4)
    first = _in_thread(lambda: draw(source))
    engine.finish(0, 1, 2, 3)
    assert len(first()[0].trajectories) == 6
    assert not source.exhausted
    engine.weight_version = 1
    assert groups(draw(source)[0]) == [3, 3]
    assert source.exhausted
    assert draw(source)[0] is None


def test_a_small_dataset_goes_on_over_epochs(made):
    source, engine = made(count=4, epochs=5, num_prompts_per_step=2)
    seen = []
    for step in range(10):
        engine.weight_version = step
        waiting = _in_thread(lambda: draw(source))
        engine.finish(2 * step, 2 * step + 1)
        seen += [each.prompt.prompt_id for each in waiting()[0].trajectories[::2]]
    assert seen == [f"p{number}" for number in (0, 1, 2, 3)] * 5
    assert source.exhausted


def test_a_straggler_that_never_ends_is_an_error_within_the_deadline(made):
    source, engine = made(num_prompts_per_step=2, deadline_s=0.3)
    waiting = _in_thread(lambda: draw(source))
    engine.finish(1)
    with pytest.raises(GenerationError, match=r"within 0.3 s .* the engine still has 3 groups: prompts p0, p2, p3$"):
        waiting()


def test_a_verifier_that_does_not_come_back_is_named_and_not_the_engine(made):
    class Silent:
        def __init__(self):
            self.asked, self.go = threading.Event(), threading.Event()

        def score(self, *_):
            self.asked.set()
            assert self.go.wait(LIMIT)
            raise RewardError("closed")

    scorer = Silent()
    source, engine = made(scorer=scorer, deadline_s=0.3)
    waiting = _in_thread(lambda: draw(source))
    engine.finish(1)
    assert scorer.asked.wait(LIMIT)
    try:
        with pytest.raises(GenerationError, match=r"within 0.3 s .* verifiers still have 1 groups: prompts p1$"):
            waiting()
    finally:
        scorer.go.set()


def test_a_dead_engine_is_its_own_error_and_no_wait(made):
    source, engine = made()
    waiting = _in_thread(lambda: draw(source))
    engine.wait_for(6)
    engine.fail(GenerationError("the engine's own words"))
    with pytest.raises(GenerationError, match="the engine's own words"):
        waiting()
    with pytest.raises(GenerationError, match="the engine's own words"):
        draw(source)


def test_a_failed_verifier_is_its_own_error(made):
    class Broken:
        def score(self, *_):
            raise RewardError("the verifier's own words")

    source, engine = made(scorer=Broken())
    waiting = _in_thread(lambda: draw(source))
    engine.finish(0)
    with pytest.raises(RewardError, match="the verifier's own words"):
        waiting()


def test_groups_that_teach_nothing_are_replaced_and_counted(made):
    scorer = ChosenScorer(lambda group, place: 1.0 if group in (1, 2) else float(place))
    source, engine = made(scorer=scorer, use_dynamic_sampling=True)
    waiting = _in_thread(lambda: draw(source))
    engine.finish(0, 1, 2, 3)
    assert engine.wait_for(8)[6:] == [6, 7]
    engine.finish(7)
    rollout, _ = waiting()
    assert groups(rollout) == [0, 0, 3, 3, 7, 7]
    assert rollout.metrics["rollout/discarded_groups"] == 2
    assert rollout.generated_samples == 10


def test_what_a_group_teaches_is_told_by_its_raw_rewards(made):
    scorer = ChosenScorer(
        lambda group, place: float(place if group != 1 else 1), lambda group, place: place / (1 + group)
    )
    source, engine = made(scorer=scorer, use_dynamic_sampling=True)
    waiting = _in_thread(lambda: draw(source))
    engine.finish(1)
    engine.finish(0, 2, 3)
    assert groups(waiting()[0]) == [0, 0, 2, 2, 3, 3]


def test_too_many_groups_that_teach_nothing_are_an_error(made):
    source, engine = made(
        count=99, scorer=ChosenScorer(lambda _group, _place: 1.0), use_dynamic_sampling=True,
        dynamic_sampling_max_gen_batches=2,
    )  # fmt: skip
    waiting = _in_thread(lambda: draw(source))
    engine.finish(*range(6))
    with pytest.raises(DynamicSamplingError, match="after 2 generation batches"):
        waiting()


def test_a_resumed_source_trains_every_prompt_once(made):
    source, engine = made(count=9)
    waiting = _in_thread(lambda: draw(source))
    engine.finish(0, 3, 1, 5)
    trained = groups(waiting()[0])[::2]
    tensors, values = source.state()
    values = json.loads(json.dumps(values))
    source.close()
    other, engine = made(count=9)
    other.load_state(tensors, values)
    for version in (1, 2):
        engine.weight_version = version
        waiting = _in_thread(lambda: draw(other))
        if version == 1:
            # What waited is not sampled again; what ran is.
            assert set(engine.wait_for(5)) == {2, 4, 6, 7, 8}
            engine.finish(2, 4, 6, 7, 8)
        trained += groups(waiting()[0])[::2]
    assert sorted(trained) == list(range(9))
    assert other.exhausted


def test_a_rollout_that_is_undone_is_in_the_checkpoint_and_is_trained_by_the_next_run(made):
    source, engine = made(count=9)
    waiting = _in_thread(lambda: draw(source))
    engine.finish(0, 3, 1, 5)
    trained = groups(waiting()[0])[::2]
    source.begin()
    engine.weight_version = 1
    waiting = _in_thread(lambda: draw(source))
    engine.finish(2, 4)
    undone = groups(waiting()[0])[::2]
    source.go_back()
    tensors, values = source.state()
    source.close()
    assert set(undone) <= {group["position"] for group in values["groups"]}
    other, engine = made(count=9)
    other.load_state(tensors, values)
    engine.weight_version = 1
    waiting = _in_thread(lambda: draw(other))
    assert groups(waiting()[0])[::2] == undone
    assert not set(undone) & set(trained)


def test_what_a_synchronous_run_saved_is_refused_and_the_other_way_round(made):
    source, engine = made()
    saved = source.state()[1]
    loader = PromptLoader([prompt(n) for n in range(12)], seed=1, shuffle=False, max_epochs=1)
    other = OnDemandSource(loader, engine, ChosenScorer(None), SamplingParams(max_new_tokens=4), Grpo())
    with pytest.raises(CheckpointError, match=r"async_grpo\.enabled: .* saved with true, this run has false"):
        other.load_state({}, saved)
    with pytest.raises(CheckpointError, match=r"async_grpo\.enabled: .* saved with false, this run has true"):
        source.load_state({}, other.state()[1])


def _in_thread(call):
    """Start `call` beside the test; what is returned waits for its value or raises its error."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return lambda: future.result(LIMIT)
