import pytest

from grpo.errors import RewardError
from grpo.rewards.verifiers import load_verifier


@pytest.mark.parametrize(
    ("kwargs", "completion", "score"),
    [
        ({}, "Seven", 1.0),
        ({}, " Seven\n", 1.0),
        ({}, "seven", 0.0),
        ({}, "Seven.", 0.0),
        ({}, "", 0.0),
        ({"strip": False}, " Seven", 0.0),
        ({"strip": False}, "Seven", 1.0),
        ({"ignore_case": True}, "sEVEN ", 1.0),
        ({"ignore_case": True}, "eight", 0.0),
    ],
)
def test_equality(kwargs, completion, score):
    verify = load_verifier("exact_match", kwargs)
    assert verify(prompt="p", completion=completion, answer="Seven", record={}) == score


def test_no_reference_answer_is_an_error_not_a_wrong_answer():
    with pytest.raises(ValueError, match="no reference answer"):
        load_verifier("exact_match", {})(prompt="", completion="", answer=None, record={})


def test_unknown_option():
    with pytest.raises(RewardError, match=r"exact_match.*stripp"):
        load_verifier("exact_match", {"stripp": True})
