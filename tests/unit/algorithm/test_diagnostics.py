import math

import pytest
import torch

from grpo.algorithm import diagnostics
from grpo.algorithm.layout import TokenLayout

OLD = torch.tensor([-1.0, -2.1, -2.8], dtype=torch.float64)
GENERATION = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
ALL = torch.ones(3, dtype=torch.bool)


def test_mult_prob_error_and_gen_kl_error():
    differences = diagnostics.logprob_differences(OLD, GENERATION, ALL)
    assert diagnostics.mult_prob_error(differences).mean().item() == pytest.approx(1.1088579, abs=1e-7)
    assert diagnostics.gen_kl_error(differences).mean().item() == pytest.approx(0.0087467, abs=1e-7)
    assert differences.abs().mean().item() == pytest.approx(0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("masked", [True, False])
def test_a_value_that_is_not_finite_hides_nothing(bad, masked):
    generation = torch.cat([GENERATION, torch.tensor([bad])])
    old = torch.cat([OLD, torch.tensor([-1.0])])
    differences = diagnostics.logprob_differences(old, generation, torch.tensor([True, True, True, not masked]))
    torch.testing.assert_close(differences, torch.tensor([0.0, -0.1, 0.2, 0.0], dtype=torch.float64))


def test_a_huge_difference_does_not_overflow():
    differences = diagnostics.logprob_differences(torch.tensor([-1.0]), torch.tensor([-201.0]), torch.tensor([True]))
    assert diagnostics.mult_prob_error(differences).item() == pytest.approx(math.exp(200))


def test_approx_entropy_is_the_entropy_in_expectation():
    """Over the exact distribution of the sampled token, whatever the engine sampled from."""
    policy, engine = torch.tensor([0.6, 0.3, 0.1]).double(), torch.tensor([0.5, 0.25, 0.25]).double()
    estimates = diagnostics.approx_entropy(policy.log(), engine.log(), ALL)
    assert (engine * estimates).sum().item() == pytest.approx(-(policy * policy.log()).sum().item())


def test_sequence_means_are_over_trained_tokens():
    layout = TokenLayout(torch.tensor([True, True, False, True]), torch.tensor([0, 1, 0, 0]), 3)
    means = diagnostics.sequence_means(torch.tensor([1.0, 5.0, math.nan, 3.0], dtype=torch.float64), layout)
    assert means[:2].tolist() == [2.0, 5.0]
    assert means[2].isnan()


def test_token_sums_are_float64_over_trained_tokens():
    mask = torch.tensor([True, False, True])
    rows = {"a": torch.tensor([1.0, math.nan, 2.0], requires_grad=True), "b": torch.tensor([True, True, False])}
    sums = diagnostics.token_sums(rows, mask)
    assert {name: value.item() for name, value in sums.items()} == {"a": 3.0, "b": 1.0}
    assert {value.dtype for value in sums.values()} == {torch.float64}


@pytest.mark.parametrize(
    ("rewards", "groups", "expected"),
    [
        ([1, 1, 0, 1], [0, 0, 1, 1], 0.5),
        ([0.35] * 3 + [1, 0], [7, 7, 7, 2, 2], 0.5),
        ([1, 0, 1, 0], [5, 5, -5, -5], 0.0),
        ([1, math.nan, 1, 0], [0, 0, 1, 1], 0.0),  # one valid reward says nothing of its group
        ([1, math.nan, 1, 0], [0, 0, 0, 1], 1.0),
        ([], [], 0.0),
        ([math.nan] * 2, [0, 0], 0.0),
    ],
)
def test_zero_std_fraction(rewards, groups, expected):
    result = diagnostics.zero_std_fraction(
        torch.tensor(rewards, dtype=torch.float32), torch.tensor(groups, dtype=torch.int64)
    )
    assert result == expected
