import math

import pytest
import torch

from grpo.algorithm.kl import kl_estimates, on_policy_gradient, sequence_kl
from grpo.algorithm.layout import TokenLayout

KINDS = ("k1", "k2", "k3")
UNCLAMPED = {"input_clamp": None, "output_clamp": None}


def estimate(log_x, kind, **options):
    log_x = torch.tensor(log_x, dtype=torch.float64)
    logprobs = torch.full_like(log_x, -2.0)
    return kl_estimates(logprobs, logprobs + log_x, torch.ones_like(log_x, dtype=torch.bool), kind=kind, **options)


@pytest.mark.parametrize(
    ("log_x", "expected"),
    [(1.0, (-1, 0.5, 0.718282)), (-1.0, (1, 0.5, 0.367879)), (-5.0, (5, 12.5, 4.006738)), (0.0, (0, 0, 0))],
)
def test_estimates(log_x, expected):
    values = [estimate([log_x], kind, **UNCLAMPED).item() for kind in KINDS]
    assert values == pytest.approx(expected, abs=1e-6)


def test_clamps():
    assert estimate([-5.0], "k2").item() == 10.0
    assert estimate([-500.0], "k1", output_clamp=None).item() == 20.0
    assert estimate([500.0], "k1", output_clamp=None).item() == -20.0
    assert estimate([500.0], "k1").item() == -10.0
    assert estimate([500.0], "k3", output_clamp=None).item() == pytest.approx(math.exp(20) - 21)
    assert estimate([2.0], "k1", input_clamp=0.5).item() == -0.5


def test_a_reference_that_excludes_the_token_stays_finite():
    assert estimate([-math.inf], "k3").item() == 10.0


def test_k3_does_not_cancel_near_zero():
    logprobs = torch.tensor([-1.0], dtype=torch.float32)
    value = kl_estimates(logprobs, logprobs + 2**-12, torch.tensor([True]), kind="k3").item()
    assert value == pytest.approx(2**-25, rel=1e-3)


def expected_gradient(kind, *, on_policy):
    """Exact expectation over a Bernoulli policy p = .7 against .5, of the gradient with respect to its logit."""
    logit = torch.tensor(math.log(0.7 / 0.3), dtype=torch.float64, requires_grad=True)
    logprobs = torch.stack([torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)])
    mask = torch.tensor([True, True])
    terms = kl_estimates(logprobs, torch.full_like(logprobs, math.log(0.5)), mask, kind=kind, **UNCLAMPED)
    values = terms.detach()
    if on_policy:
        terms = on_policy_gradient(terms, logprobs, mask)
        torch.testing.assert_close(terms.detach(), values, rtol=0, atol=0)
    probabilities = torch.tensor([0.7, 0.3], dtype=torch.float64)
    (probabilities * terms).sum().backward()
    return (probabilities * values).sum().item(), logit.grad.item()


@pytest.mark.parametrize(
    ("kind", "value", "bare", "on_policy"),
    [
        ("k1", 0.0822829, 0.0, 0.1779326),
        ("k2", 0.0787662, 0.1779326, 0.162421),
        ("k3", 0.0822829, 0.2, 0.1779326),
    ],
)
def test_expected_values_and_gradients(kind, value, bare, on_policy):
    assert expected_gradient(kind, on_policy=False) == pytest.approx((value, bare), abs=1e-7)
    assert expected_gradient(kind, on_policy=True) == pytest.approx((value, on_policy), abs=1e-6)


def test_the_true_gradient_by_finite_differences():
    def divergence(logit):
        p = 1 / (1 + math.exp(-logit))
        return p * math.log(p / 0.5) + (1 - p) * math.log((1 - p) / 0.5)

    logit, step = math.log(0.7 / 0.3), 1e-5
    difference = (divergence(logit + step) - divergence(logit - step)) / (2 * step)
    assert difference == pytest.approx(expected_gradient("k2", on_policy=False)[1], abs=1e-8)
    for kind in ("k1", "k3"):
        assert difference == pytest.approx(expected_gradient(kind, on_policy=True)[1], abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_sequence_kl_sums_over_trained_tokens(kind):
    log_x = torch.tensor([1.0, -1.0, math.nan, -5.0, 1.0], dtype=torch.float64)
    mask = torch.tensor([True, True, False, True, True])
    layout = TokenLayout(mask, torch.tensor([0, 2, 0, 0, 2]), 4)
    logprobs = torch.full_like(log_x, -2.0).requires_grad_()
    result = sequence_kl(logprobs, logprobs.detach() + log_x, layout, kind=kind)
    expected = {"k1": (-1 + 5, 0), "k2": (0.5 + 10, 1), "k3": (0.718282 + 4.006738, 0.367879 + 0.718282)}[kind]
    assert result.tolist() == pytest.approx([expected[0], 0, expected[1], 0], abs=1e-5)
    assert not result.requires_grad
