import pytest

from grpo.config.schema import RewardScaling, RewardShaping
from grpo.errors import RewardError
from grpo.models.loading import load_tokenizer
from grpo.models.shipped import shipped_folder
from grpo.rewards.request import Score
from grpo.rollout.scoring import Scorer
from tests.support.rollouts import completion, prompt


class ChosenRewards:
    def __init__(self, *values):
        self._scores = [Score(value, None if value is not None else "timeout after 1 s") for value in values]
        self.requests = []

    def score(self, requests):
        self.requests += requests
        return self._scores


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(shipped_folder("tiny-digits"))


def scorer(tokenizer, *values, scaling=None, shaping=None):
    rewards = ChosenRewards(*values)
    return Scorer(rewards, tokenizer, scaling=scaling or RewardScaling(), shaping=shaping or RewardShaping()), rewards


def test_completions_are_decoded_and_sent_to_the_env_of_their_prompt(tokenizer):
    made, rewards = scorer(tokenizer, 1.0, 0.0, 1.0)
    digit = tokenizer.convert_tokens_to_ids
    answers = [[completion((digit("7"), tokenizer.eos_token_id)), completion((digit("3"), digit("4")))]]
    answers += [[completion((tokenizer.eos_token_id,))]]
    trajectories = made.score([prompt(4, answer="7"), prompt(5)], answers, [10, 11])
    assert [each.text for each in trajectories] == ["7", "34", ""]
    assert [each.group_id for each in trajectories] == [10, 10, 11]
    assert [each.reward for each in trajectories] == [1.0, 0.0, 1.0]
    name, first = rewards.requests[0]
    assert (name, first.completion, first.answer, first.record) == ("env", "7", "7", {"number": 4})


def test_scaling_and_shaping_leave_the_raw_reward_alone(tokenizer):
    made, _ = scorer(
        tokenizer, 1.0, 0.0, None, 1.0,
        scaling=RewardScaling(enabled=True, target_min=-1.0, target_max=1.0),
        shaping=RewardShaping(enabled=True, overlong_buffer_length=4, max_response_length=8),
    )  # fmt: skip
    answers = [[completion((3,) * 4), completion((3,) * 6), completion((3,) * 8), completion((3,) * 8)]]
    trajectories = made.score([prompt(0)], answers, [0])
    assert [each.raw_reward for each in trajectories] == [1.0, 0.0, None, 1.0]
    assert [each.reward for each in trajectories] == [1.0, -1.5, None, 0.0]


def test_one_sample_without_a_verdict_is_dropped_and_all_without_is_an_error(tokenizer):
    made, _ = scorer(tokenizer, None, 1.0)
    assert [each.reward for each in made.score([prompt(0)], [[completion(), completion()]], [0])] == [None, 1.0]
    made, _ = scorer(tokenizer, None, None)
    with pytest.raises(RewardError, match="none of the 2 samples could be scored; the first: timeout after 1 s"):
        made.score([prompt(0)], [[completion(), completion()]], [0])


def test_samples_that_happen_to_be_alone_cost_themselves_until_too_many_fail_in_a_row(tokenizer):
    made, rewards = scorer(tokenizer, 1.0)
    made.score([prompt(0)], [[completion()]], [0])
    rewards._scores = [Score(None, "timeout after 1 s")]
    for _ in range(63):
        assert made.score([prompt(0)], [[completion()]], [0])[0].reward is None
    with pytest.raises(RewardError, match="timeout after 1 s"):
        made.score([prompt(0)], [[completion()]], [0])
    rewards._scores = [Score(0.0, None)]
    made.score([prompt(0)], [[completion()]], [0])
    rewards._scores = [Score(None, "timeout after 1 s")]
    made.score([prompt(0)], [[completion()]], [0])
