import pytest

from grpo.config.schema import Grpo
from grpo.data.loader import PromptLoader
from grpo.rollout.on_demand import DynamicSamplingError, OnDemandSource
from grpo.telemetry.timers import PhaseTimer
from grpo.workers.protocol import SamplingParams
from tests.support.rollouts import ChosenScorer, RecordingGenerator, prompt

SAMPLING = SamplingParams(max_new_tokens=4)


def source(scorer, *, count=12, epochs=1, generator=None, **grpo):
    settings = Grpo(**{"num_prompts_per_step": 3, "num_generations_per_prompt": 2, **grpo})
    loader = PromptLoader([prompt(n) for n in range(count)], seed=1, shuffle=False, max_epochs=epochs)
    return OnDemandSource(loader, generator or RecordingGenerator(), scorer, SAMPLING, settings)


def draw(rollouts):
    timer = PhaseTimer()
    with timer.step():
        return rollouts.next_rollout(timer)


def always(value):
    return ChosenScorer(lambda _group, place: value if place else 0.0)


def test_a_step_holds_whole_groups_in_order():
    rollout = draw(source(always(1.0)))
    assert [each.group_id for each in rollout.trajectories] == [0, 0, 1, 1, 2, 2]
    assert [each.prompt.prompt_id for each in rollout.trajectories] == ["p0", "p0", "p1", "p1", "p2", "p2"]
    assert (rollout.generated_samples, rollout.generated_tokens, rollout.prompt_tokens) == (6, 12, 18)


def test_two_equal_prompts_are_two_groups():
    loader = PromptLoader([prompt(0), prompt(0)], seed=1, shuffle=False, max_epochs=1)
    settings = Grpo(num_prompts_per_step=2, num_generations_per_prompt=2)
    rollout = draw(OnDemandSource(loader, RecordingGenerator(), always(1.0), SAMPLING, settings))
    assert [each.group_id for each in rollout.trajectories] == [0, 0, 1, 1]


def test_the_last_step_may_be_smaller_and_then_there_is_none():
    rollouts = source(always(1.0), count=4)
    assert not rollouts.exhausted
    assert [len(draw(rollouts).trajectories), len(draw(rollouts).trajectories)] == [6, 2]
    assert rollouts.exhausted
    assert draw(rollouts) is None


def test_a_small_dataset_goes_on_over_epochs():
    rollouts = source(always(1.0), count=4, epochs=10, num_prompts_per_step=4)
    assert [len(draw(rollouts).trajectories) for _ in range(10)] == [8] * 10


def test_seeds_differ_by_group_and_repeat_by_run_seed():
    def seeds(seed):
        generator = RecordingGenerator()
        rollouts = source(always(1.0), generator=generator, seed=seed)
        draw(rollouts), draw(rollouts)
        return [seed for call in generator.calls for seed in call[3]]

    assert len(set(seeds(1))) == 6
    assert seeds(1) == seeds(1)
    assert not set(seeds(1)) & set(seeds(2))


def test_resuming_draws_the_same_groups_with_the_same_seeds():
    whole, first, rest = RecordingGenerator(), RecordingGenerator(), RecordingGenerator()
    uninterrupted = source(always(1.0), generator=whole)
    for _ in range(4):
        draw(uninterrupted)
    before = source(always(1.0), generator=first)
    draw(before), draw(before)
    after = source(always(1.0), generator=rest)
    after.load_state(*before.state())
    draw(after), draw(after)
    assert whole.calls == first.calls + rest.calls


def test_dynamic_sampling_refills_until_enough_groups_are_informative():
    even_groups_differ = ChosenScorer(lambda group, place: float(place) if group % 2 == 0 else 1.0)
    rollout = draw(source(even_groups_differ, use_dynamic_sampling=True))
    assert [each.group_id for each in rollout.trajectories] == [0, 0, 2, 2, 4, 4]
    assert rollout.generated_samples == 12
    assert rollout.metrics == {"rollout/generation_batches": 2.0, "rollout/discarded_groups": 3.0}


def test_dynamic_sampling_judges_the_raw_rewards():
    only_shaped_differ = ChosenScorer(lambda _group, _place: 1.0, shaped=lambda _group, place: 1.0 - place / 10)
    with pytest.raises(DynamicSamplingError):
        draw(source(only_shaped_differ, use_dynamic_sampling=True, dynamic_sampling_max_gen_batches=2))


def test_dynamic_sampling_gives_up_with_the_keys_to_change():
    rollouts = source(
        ChosenScorer(lambda _group, _place: 1.0), use_dynamic_sampling=True, dynamic_sampling_max_gen_batches=3
    )
    with pytest.raises(
        DynamicSamplingError, match=r"after 3 generation batches .* only 0 of grpo.num_prompts_per_step=3"
    ):
        draw(rollouts)


def test_dynamic_sampling_gives_a_partial_step_when_the_prompts_end():
    last_differs = ChosenScorer(lambda group, place: float(place) if group == 3 else 1.0)
    rollout = draw(source(last_differs, count=4, use_dynamic_sampling=True))
    assert [each.group_id for each in rollout.trajectories] == [3, 3]


def test_every_second_is_data_generation_or_rewards():
    timer = PhaseTimer()
    with timer.step() as times:
        source(always(1.0)).next_rollout(timer)
    assert all(times[f"timing/{phase}"] > 0 for phase in ("data", "generation", "rewards"))
