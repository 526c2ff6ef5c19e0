import math

import pytest
import torch

from grpo.algorithm.aggregation import Denominators
from grpo.algorithm.metrics import METRICS, SEQUENCE_STATISTICS, MetricSums


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


def test_each_sum_has_the_denominator_that_its_metric_declares():
    names = {"clip_fraction": "tokens", "is_oob_sequence_ratio": "sequences", "loss": "none"}
    assert {name: METRICS[name].denominator for name in names} == names
    result = MetricSums({name: scalar(6.0) for name in names}).finalise(Denominators(12.0, 3.0))
    assert result == {"clip_fraction": 0.5, "is_oob_sequence_ratio": 2.0, "loss": 6.0}


def test_merge_adds_sums_and_keeps_extremes_and_sequences():
    left = MetricSums(
        {"loss": scalar(1.0)}, {"probs_ratio_max": scalar(2.0)}, {"probs_ratio_min": scalar(0.5)},
        {"token_mult_prob_error": torch.tensor([1.0, math.nan])},
    )  # fmt: skip
    right = MetricSums(
        {"loss": scalar(0.25), "entropy": scalar(4.0)}, {"probs_ratio_max": scalar(1.5)},
        {"probs_ratio_min": scalar(0.25)}, {"token_mult_prob_error": torch.tensor([3.0])},
    )  # fmt: skip
    result = left.merge(right).finalise(Denominators(8.0, 2.0))
    p99 = result.pop("token_mult_prob_error_p99")
    assert p99 == pytest.approx(1 + 0.99 * 2)
    assert result == {
        "loss": 1.25, "entropy": 0.5, "probs_ratio_max": 2.0, "probs_ratio_min": 0.25, "token_mult_prob_error_max": 3.0,
    }  # fmt: skip


def test_nothing_merged_is_the_neutral_element():
    sums = MetricSums({"loss": scalar(1.0)}, sequence_values={"token_mult_prob_error": torch.tensor([1.5])})
    for both in (MetricSums().merge(sums), sums.merge(MetricSums())):
        assert both.finalise(Denominators(1, 1)) == sums.finalise(Denominators(1, 1))
    assert MetricSums().finalise(Denominators(0, 0)) == {}


def test_extremes_of_nothing_are_left_out_and_sums_are_zero():
    sums = MetricSums(
        {"clip_fraction": scalar(0.0)}, {"probs_ratio_max": scalar(-math.inf)}, {"probs_ratio_min": scalar(math.inf)},
        {"token_mult_prob_error": torch.tensor([math.nan])},
    )  # fmt: skip
    assert sums.finalise(Denominators(0.0, 0.0)) == {"clip_fraction": 0.0}


def test_p99_over_sequences_hides_no_tail():
    """One of fifty sequences at 100 moves p99; one of a thousand only the maximum."""
    few = torch.ones(50, dtype=torch.float64)
    few[3] = 100.0
    many = torch.ones(1000, dtype=torch.float64)
    many[3] = 100.0
    sums = [MetricSums(sequence_values={"token_mult_prob_error": values}) for values in (few, many)]
    results = [each.finalise(Denominators(1, 1)) for each in sums]
    assert results[0]["token_mult_prob_error_p99"] > 50
    assert results[1]["token_mult_prob_error_p99"] == 1.0
    assert results[1]["token_mult_prob_error_max"] == 100.0


def test_an_undeclared_metric_is_an_error():
    with pytest.raises(KeyError, match="reward"):
        MetricSums({"reward": scalar(1.0)}).finalise(Denominators(1, 1))


def test_every_metric_says_what_it_is():
    assert all(spec.description and spec.denominator in ("tokens", "sequences", "none") for spec in METRICS.values())
    assert {name for levels in SEQUENCE_STATISTICS.values() for name in levels} <= set(METRICS)


def test_one_transfer_takes_all_of_them_to_the_host():
    sums = MetricSums(
        {"loss": scalar(1.5)}, {"probs_ratio_max": scalar(2.0)}, {"probs_ratio_min": scalar(0.5)},
        {"logprob_difference": torch.tensor([0.25, torch.nan, 0.75]).double()},
    )  # fmt: skip
    assert sums.on_host() is sums
    transfers = []

    class Elsewhere(torch.Tensor):
        @property
        def device(self):
            return torch.device("meta")

        def cpu(self):
            transfers.append(self.shape)
            return self.as_subclass(torch.Tensor)

    parts = (sums.sums, sums.maxima, sums.minima, sums.sequence_values)
    far = MetricSums(*({name: value.as_subclass(Elsewhere) for name, value in part.items()} for part in parts))
    assert far.finalise(Denominators(1, 1)) == sums.finalise(Denominators(1, 1))
    assert transfers == [(6,)]
