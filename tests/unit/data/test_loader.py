import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.data.loader import PromptLoader
from grpo.data.prompt import Prompt
from grpo.errors import CheckpointError, DataError


def prompts(count, first=0):
    return [Prompt(f"d:{i}", str(i), (first + i,), "env", None, {}) for i in range(count)]


def names(taken):
    return [p.prompt_id for p in taken]


@given(
    size=st.integers(1, 23),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    stop=st.integers(0, 11),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**40),
)
def test_resumed_run_consumes_what_the_uninterrupted_one_does(size, counts, stop, shuffle, seed):
    whole = PromptLoader(prompts(size), seed=seed, shuffle=shuffle)
    expected = [names(whole.take(n)) for n in counts]
    first = PromptLoader(prompts(size), seed=seed, shuffle=shuffle)
    seen = [names(first.take(n)) for n in counts[:stop]]
    second = PromptLoader(prompts(size), seed=seed, shuffle=shuffle)
    second.load_state(json.loads(json.dumps(first.state())))
    seen += [names(second.take(n)) for n in counts[stop:]]
    assert seen == expected


def test_ten_steps_equal_five_then_resume_then_five_each_prompt_once():
    whole = PromptLoader(prompts(30), seed=5, max_epochs=1)
    expected = [name for _ in range(10) for name in names(whole.take(3))]
    first = PromptLoader(prompts(30), seed=5, max_epochs=1)
    seen = [name for _ in range(5) for name in names(first.take(3))]
    second = PromptLoader(prompts(30), seed=5, max_epochs=1)
    second.load_state(first.state())
    seen += [name for _ in range(5) for name in names(second.take(3))]
    assert seen == expected
    assert sorted(seen) == sorted(names(prompts(30)))
    assert second.remaining == 0


def test_ten_steps_over_four_prompts_go_through_epochs():
    loader = PromptLoader(prompts(4), seed=0)
    taken = [name for _ in range(10) for name in names(loader.take(3))]
    for epoch in range(7):
        assert sorted(taken[4 * epoch : 4 * epoch + 4]) == names(prompts(4))
    assert loader.epoch == 7
    assert loader.remaining is None


def test_epochs_are_shuffled_apart():
    loader = PromptLoader(prompts(20), seed=0)
    assert names(loader.take(20)) != names(loader.take(20))


def test_last_take_is_partial_and_then_empty():
    loader = PromptLoader(prompts(5), seed=0, max_epochs=2)
    assert [len(loader.take(4)) for _ in range(4)] == [4, 4, 2, 0]
    assert loader.remaining == 0


def test_one_take_may_be_longer_than_an_epoch():
    loader = PromptLoader(prompts(3), seed=0, shuffle=False)
    assert names(loader.take(7)) == ["d:0", "d:1", "d:2"] * 2 + ["d:0"]


def test_without_shuffle_the_file_order():
    assert names(PromptLoader(prompts(9), seed=3, shuffle=False).take(9)) == names(prompts(9))


def test_seed_decides_the_order():
    order = [names(PromptLoader(prompts(20), seed=seed).take(20)) for seed in (1, 1, 2)]
    assert order[0] == order[1]
    assert order[0] != order[2]


def test_more_epochs_may_follow_a_resume():
    first = PromptLoader(prompts(3), seed=1, max_epochs=1)
    first.take(3)
    second = PromptLoader(prompts(3), seed=1, max_epochs=3)
    second.load_state(first.state())
    assert second.remaining == 6


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (PromptLoader(prompts(5), seed=2), "grpo.seed: the checkpoint was saved with 2, this run has 1"),
        (PromptLoader(prompts(5), seed=1, shuffle=False), "data.shuffle"),
        (PromptLoader(prompts(5, first=9), seed=1), "data.train: the checkpoint was saved with other prompts"),
        (PromptLoader(prompts(4), seed=1), "data.train: the checkpoint was saved with other prompts"),
    ],
)
def test_state_of_another_run_is_refused_by_name(other, message):
    loader = PromptLoader(prompts(5), seed=1)
    loader.take(2)
    with pytest.raises(CheckpointError, match=message):
        loader.load_state(other.state())
    assert loader.position == 2


@pytest.mark.parametrize("change", [{"position": -1}, {"position": "3"}, {"more": 1}])
def test_state_that_is_none_is_refused(change):
    loader = PromptLoader(prompts(5), seed=1)
    with pytest.raises(CheckpointError, match="loader state"):
        loader.load_state({**loader.state(), **change})


def test_no_prompts():
    with pytest.raises(DataError, match="no prompts"):
        PromptLoader([], seed=0)
