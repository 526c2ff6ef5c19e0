import pytest

from grpo.matrix.diagnose.patterns import patterns


def said(longer=None, **ratios):
    return " ".join(patterns(ratios, longer))


def test_the_same_factor_everywhere_is_a_machine():
    text = said(generation=1.10, policy_training=1.12, logprobs=1.14, refit=1.11)
    assert "every phase is slower by about the same factor (1.10 to 1.14)" in text
    assert "refit is" not in text


def test_training_slower_than_the_same_layers_forward():
    text = said(policy_training=1.21, logprobs=1.04, generation=1.07, refit=1.0)
    assert "training is 1.21x and log-probs, the same layers forward, 1.04x" in text


def test_training_and_logprobs_alike():
    text = said(policy_training=1.11, logprobs=1.11, generation=1.0)
    assert "slower by the same factor (1.11x and 1.11x)" in text


def test_refit_alone():
    assert "refit is 1.86x and nothing else more than 1.11x (log-probs)" in said(
        refit=1.86, logprobs=1.11, policy_training=1.10, generation=1.04
    )


def test_longer_answers_are_work():
    assert "answers are 4 % longer" in said(longer=411 / 395, generation=1.05)
    assert said(longer=1.01, generation=1.0) == ""


@pytest.mark.parametrize("ratios", [{}, {"refit": 3.0}, {"policy_training": 3.0}, {"generation": 1.0, "refit": 1.0}])
def test_nothing_is_said_of_too_little(ratios):
    assert said(**ratios) == ""
