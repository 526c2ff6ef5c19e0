import pytest
import torch

from grpo.algorithm.aggregation import Denominators
from grpo.algorithm.metrics import MetricSums
from grpo.workers.policy.reduction import reduce_metrics, sum_tokens
from tests.support.pretended_ranks import lone_rank


@pytest.fixture(autouse=True)
def group():
    with lone_rank() as group:
        yield group


def sums(*values):
    return MetricSums(
        {"loss": torch.tensor(0.5, dtype=torch.float64), "probs_ratio": torch.tensor(6.0, dtype=torch.float64)},
        maxima={"probs_ratio_max": torch.tensor(1.5)},
        minima={"probs_ratio_min": torch.tensor(-0.25)},
        sequence_values={"token_mult_prob_error": torch.tensor(values)},
    )


def test_one_rank_keeps_its_own_metrics(group):
    own = sums(1.1, 1.3, 1.2)
    total = reduce_metrics(own, [2, 0, 1], 3, group)
    denominators = Denominators(4.0, 3.0)
    assert total.finalise(denominators) == pytest.approx(own.finalise(denominators), rel=1e-6)
    assert total.sequence_values["token_mult_prob_error"].tolist() == pytest.approx([1.3, 1.2, 1.1])


def test_values_of_dummies_are_left_out(group):
    total = reduce_metrics(sums(torch.nan, 1.3, torch.nan), [-1, 0, -1], 1, group)
    assert total.sequence_values["token_mult_prob_error"].tolist() == pytest.approx([1.3])


def test_extremes_of_nothing_stay_unknown(group):
    empty = MetricSums(
        {"loss": torch.zeros(())},
        {"probs_ratio_max": torch.tensor(-torch.inf)},
        {"probs_ratio_min": torch.tensor(torch.inf)},
    )
    assert reduce_metrics(empty, [], 0, group).finalise(Denominators(0.0, 0.0)) == {"loss": 0.0}


def test_tokens_come_back_on_the_cpu(group):
    values = torch.tensor([0.0, -1.5])
    assert torch.equal(sum_tokens(values, torch.device("cpu"), group), values)
