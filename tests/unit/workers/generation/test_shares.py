"""Requests spread over replicas: everything once, together where possible, balanced."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.workers.generation.shares import Loads, Part, numbered_anew, share_out, work


@given(st.lists(st.integers(1, 50), max_size=9), st.integers(1, 7), st.integers(1, 20), st.integers(1, 12))
def test_every_completion_is_sampled_once_and_stays_with_its_prompt_if_it_can(lengths, completions, new, replicas):
    shares = share_out(lengths, completions, new, replicas)
    assert len(shares) == replicas
    seen = Counter((part.prompt, number) for share in shares for part in share for number in part.completions)
    assert seen == Counter((prompt, number) for prompt in range(len(lengths)) for number in range(completions))
    parts = [part for share in shares for part in share]
    if len(lengths) >= replicas:
        assert all(part.completions == range(completions) for part in parts)
    else:
        assert sum(map(bool, shares)) == min(replicas, len(lengths) * completions) or len(lengths) == 0
    for share in shares:
        assert share == sorted(share, key=lambda part: (part.prompt, part.completions.start))


@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.integers(1, 8))
def test_no_replica_has_more_than_the_heaviest_request_above_another(lengths, replicas):
    shares = share_out(lengths, 2, 10, replicas)
    loads = [sum(work(lengths[part.prompt], len(part.completions), 10) for part in share) for share in shares]
    assert max(loads) - min(loads) <= max(work(length, 2, 10) for length in lengths)


def test_the_heaviest_are_dealt_first():
    # 100 | 60 + 30 | 50 + 40, each with one new token: in the order of the prompts it would be 100 + 30 and 60 and 90.
    shares = share_out([100, 60, 50, 40, 30], 1, 1, 3)
    assert [[part.prompt for part in share] for share in shares] == [[0], [1, 4], [2, 3]]


@pytest.mark.parametrize(("prompts", "completions", "replicas", "pieces"), [
    (1, 8, 3, [range(2), range(2, 5), range(5, 8)]),
    (1, 2, 4, [range(1), range(1, 2)]),
    (2, 4, 3, [range(2), range(2, 4), range(4)]),  # the first prompt in two pieces
    (1, 0, 2, [range(0)]),  # for the engine to refuse
])  # fmt: skip
def test_with_fewer_prompts_than_replicas_completions_are_divided(prompts, completions, replicas, pieces):
    shares = share_out([3] * prompts, completions, 5, replicas)
    parts = sorted((part for share in shares for part in share), key=lambda part: (part.prompt, part.completions.start))
    assert [part.completions for part in parts] == pieces


def test_work_that_is_done_makes_room():
    loads = Loads(2)
    assert [loads.give(5), loads.give(3), loads.give(1), loads.give(1)] == [0, 1, 1, 1]
    loads.done(0, 5)
    assert loads.give(4) == 0


def test_a_part_is_a_key():
    assert {Part(1, range(2)): 1} == {Part(1, range(2)): 1}


def test_a_replica_is_sent_the_prompts_of_its_share_alone():
    share = [Part(2, range(3)), Part(5, range(2)), Part(5, range(2, 4)), Part(9, range(1))]
    needed, own = numbered_anew(share)
    assert needed == [2, 5, 9]
    assert own == [Part(0, range(3)), Part(1, range(2)), Part(1, range(2, 4)), Part(2, range(1))]
    assert numbered_anew([]) == ([], [])
