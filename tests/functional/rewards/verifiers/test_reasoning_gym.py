import pytest

from grpo.config.schema import Env
from grpo.errors import RewardError
from grpo.rewards.request import RewardRequest
from grpo.rewards.scoring import Rewards
from grpo.rewards.verifiers import load_verifier

pytest.importorskip("reasoning_gym", reason="needs reasoning-gym: pip install 'grpo-matrix[tasks]'")

RECORD = {
    "question": "Spell this word backward: sun",
    "answer": "nus",
    "metadata": {"source_dataset": "spell_backward"},
}


def verify(completion, record=RECORD, **kwargs):
    return load_verifier("reasoning_gym", kwargs)(prompt="", completion=completion, answer="nus", record=record)


def test_right_answer():
    assert verify("nus") == 1.0
    assert verify(" nus\n") == 1.0
    assert verify("<answer>sun</answer> no <answer> nus </answer>", answer_tag="answer") == 1.0


def test_wrong_answer():
    assert verify("sun") < 1.0
    assert verify("nus", answer_tag="answer") == 0.0
    assert verify("") == 0.0


def test_task_is_named_by_option_or_record():
    bare = {"question": "", "answer": "nus"}
    assert verify("nus", bare, task="spell_backward") == 1.0
    with pytest.raises(ValueError, match="source_dataset"):
        verify("nus", bare)


def test_unknown_task_names_the_near_ones():
    with pytest.raises(RewardError, match="near it: spell_backward"):
        load_verifier("reasoning_gym", {"task": "spell_backwards"})


@pytest.mark.parametrize("task", ["spell_backward", "countdown", "basic_arithmetic", "sudoku", "graph_color"])
def test_task_through_the_pool_scores_its_own_answers(task):
    import reasoning_gym

    entries = list(reasoning_gym.create_dataset(task, size=5, seed=3))
    requests = [
        ("gym", RewardRequest(str(i), entry["question"], entry["answer"] or "", entry["answer"], entry))
        for i, entry in enumerate(entries)
        if entry["answer"]
    ]
    with Rewards({"gym": Env(verifier="reasoning_gym", timeout_s=60.0)}) as rewards:
        assert [score.value for score in rewards.score(requests)] == [1.0] * len(requests)
