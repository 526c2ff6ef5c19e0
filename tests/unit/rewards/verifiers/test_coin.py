import pytest

from grpo.config.schema import Env
from grpo.errors import RewardError
from grpo.rewards.request import RewardRequest
from grpo.rewards.scoring import Rewards
from grpo.rewards.verifiers.coin import coin_verifier

IDS = [f"p{prompt}#{prompt}/{number}" for prompt in range(200) for number in range(8)]


def tossed(**kwargs):
    toss = coin_verifier(**kwargs)
    return [toss(name) for name in IDS]


@pytest.mark.parametrize("probability", [0.5, 0.1])
def test_heads_come_as_often_as_is_said(probability):
    values = tossed(probability=probability)
    assert set(values) == {0.0, 1.0}
    assert sum(values) / len(values) == pytest.approx(probability, abs=0.04)  # three deviations


def test_the_same_sample_gets_the_same_and_another_seed_other_coins():
    assert tossed() == tossed()
    assert 600 < sum(a != b for a, b in zip(tossed(), tossed(seed=1), strict=True)) < 1000


def test_nearly_every_group_has_a_spread():
    values = tossed()
    groups = [set(values[at : at + 8]) for at in range(0, len(values), 8)]
    assert sum(len(group) == 2 for group in groups) > 0.97 * len(groups)  # all but two in 2**8


def test_it_looks_at_no_text():
    def requests(text):
        return [("coin", RewardRequest(name, text, text, None, {})) for name in IDS[:50]]

    with Rewards({"coin": Env(verifier="coin", kwargs={"seed": 3})}) as rewards:
        scores = [score.value for score in rewards.score(requests("a"))]
        assert scores == [score.value for score in rewards.score(requests("b"))] == tossed(seed=3)[:50]


@pytest.mark.parametrize("kwargs", [{"probability": 0.0}, {"probability": 1.5}, {"bias": 1}])
def test_bad_options_are_refused_before_anything_starts(kwargs):
    with pytest.raises(RewardError, match=r"env\.coin: verifier 'coin'"):
        Rewards({"coin": Env(verifier="coin", kwargs=kwargs)})
