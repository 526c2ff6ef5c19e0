import pytest

from grpo.data.sources.reasoning_gym import reasoning_gym_records
from grpo.errors import DataError

reasoning_gym = pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")


def read(task="spell_backward", *, size=4, seed=1, **kwargs):
    return list(reasoning_gym_records(task, kwargs, size=size, seed=seed, key="data.train"))


def test_entries_are_those_of_the_task():
    expected = reasoning_gym.create_dataset("spell_backward", size=4, seed=1, min_word_len=3, max_word_len=3)
    found = read(min_word_len=3, max_word_len=3)
    assert [record for _, record in found] == list(expected)
    assert [name for name, _ in found] == [f"spell_backward:{i}" for i in range(4)]
    scorer = reasoning_gym.get_score_answer_fn(found[0][1]["metadata"]["source_dataset"])
    assert scorer(found[0][1]["answer"], found[0][1]) == 1.0


def test_seed_decides():
    assert read(seed=1) == read(seed=1)
    assert read(seed=1) != read(seed=2)


def test_unknown_task_lists_the_nearest():
    with pytest.raises(DataError, match=r"data.train.task: .*'spell_bakward'; did you mean spell_backward"):
        read("spell_bakward")
    with pytest.raises(DataError, match=r"the tasks are: .*spell_backward"):
        read("qqqq")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"word_len": 3}, "does not take word_len; it takes: .*max_word_len, min_word_len"),
        ({"min_word_len": 0}, r"refuses {'min_word_len': 0}"),
        ({"min_word_len": "a"}, "refuses"),
    ],
)
def test_arguments_that_the_task_refuses(kwargs, message):
    with pytest.raises(DataError, match=f"data.train.task_kwargs: spell_backward {message}"):
        read(**kwargs)
