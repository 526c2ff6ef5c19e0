"""Lengths that are drawn from a distribution instead of being sampled."""

from statistics import fmean

import pytest

from grpo.data.lengths import completion_lengths
from grpo.rollout.seeds import sampling_seed
from grpo.workers.generation.replay import drawn_lengths, each_completion, ended
from grpo.workers.protocol import Completion, Replay, SamplingParams

HEAVY = completion_lengths(2048, mean=795, maximum=4095, shape=0.8)


def sampling(*lengths, context=100, **values):
    return SamplingParams(**{"max_new_tokens": 20, "replay": Replay(lengths, context), **values})


def test_a_group_has_every_part_of_the_distribution():
    """Of the lengths 0 to 31 a group of eight has one of each four."""
    drawn = drawn_lengths(range(32), 5, 8)
    assert sorted(each // 4 for each in drawn) == list(range(8))
    assert drawn != sorted(drawn)


def test_lengths_follow_from_the_seed_alone():
    assert drawn_lengths(HEAVY, 7, 32) == drawn_lengths(HEAVY, 7, 32)
    assert drawn_lengths(HEAVY, 7, 32) != drawn_lengths(HEAVY, 8, 32)
    assert drawn_lengths((9,), 1, 3) == [9, 9, 9]
    assert set(drawn_lengths((1, 2), 1, 5)) == {1, 2}


@pytest.mark.parametrize("step", range(5))
def test_a_steps_mean_and_tail_are_those_of_the_distribution(step):
    """A step of 64 groups of 32, as the cluster cases have: within what the judge allows (2 % and 5 %)."""
    seeds = [sampling_seed(42, "train", group) for group in range(64 * step, 64 * step + 64)]
    drawn = sorted(length for seed in seeds for length in drawn_lengths(HEAVY, seed, 32))
    assert fmean(drawn) == pytest.approx(fmean(HEAVY), rel=0.02)
    assert drawn[int(0.95 * len(drawn))] == pytest.approx(HEAVY[int(0.95 * len(HEAVY))], rel=0.05)


def test_each_completion_has_its_length_and_nothing_ends_it_before():
    each = each_completion(sampling(3, 9, stop_token_ids=(2,), stop_strings=("x",), min_new_tokens=1), 5, 1, 6)
    assert {one.max_new_tokens for one in each} == {3, 9}
    for one in each:
        assert (one.min_new_tokens, one.stop_token_ids, one.stop_strings, one.replay) == (0, (), (), None)


def test_what_is_sampled_stays_as_it_was():
    plain = SamplingParams(max_new_tokens=4, stop_token_ids=(1,))
    assert each_completion(plain, 5, 1, 2) == [plain, plain]
    group = [[Completion([1], [0.0], "length", 0)]]
    assert ended([[5]], group, plain) == group


@pytest.mark.parametrize(("prompt", "expected"), [(5, 20), (90, 10)])
def test_the_limits_cut_and_say_so(prompt, expected):
    """Of 50 tokens the limit of 20 leaves 20, and a context of 100 leaves ten after a prompt of 90."""
    wanted = sampling(4, 50)
    each = each_completion(wanted, prompt, 3, 4)
    assert sorted({one.max_new_tokens for one in each}) == [4, expected]
    sampled = [[Completion([7] * one.max_new_tokens, [0.0] * one.max_new_tokens, "length", 0) for one in each]]
    (group,) = ended([[1] * prompt], sampled, wanted)
    assert {(len(one.token_ids), one.finish_reason) for one in group} == {(4, "stop"), (expected, "length")}
