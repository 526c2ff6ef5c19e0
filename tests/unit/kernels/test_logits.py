import pytest
import torch

from grpo.kernels.logits import logit_gradients, logit_statistics
from grpo.kernels.statistics import Statistics


def case(temperature, rows=5, width=9):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, width, generator=generator, dtype=torch.float64) * 4
    targets = torch.tensor([3, -2, 8, 0, 9])  # the second and the last are of another rank
    return logits, targets, torch.softmax(logits / temperature, -1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_statistics(temperature, with_entropy):
    logits, targets, p = case(temperature)
    found, rest = logit_statistics(logits.clone(), targets, temperature=temperature, with_entropy=with_entropy)
    own = torch.tensor([0, 2, 3])
    torch.testing.assert_close(found.logprobs[own], p[own, targets[own]].log())
    assert (found.logprobs[[1, 4]] == -torch.inf).all()
    torch.testing.assert_close(found.normaliser, (logits / temperature).exp().sum(-1).log())
    torch.testing.assert_close(rest, p.log())
    if with_entropy:
        torch.testing.assert_close(found.entropy, -(p * p.log()).sum(-1))
    else:
        assert found.entropy is None


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("used", ["logprobs", "entropy", "both", "neither"])
@pytest.mark.parametrize("normalised", [True, False])
def test_gradients(temperature, used, normalised):
    logits, targets, p = case(temperature)
    generator = torch.Generator().manual_seed(1)
    of_logprobs, of_entropy = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    of_logprobs = of_logprobs if used in {"logprobs", "both"} else None
    of_entropy = of_entropy if used in {"entropy", "both"} else None
    entropy = -(p * p.log()).sum(-1)
    onehot = torch.zeros_like(p)
    onehot[[0, 2, 3], [3, 8, 0]] = 1
    expected = torch.zeros_like(p)
    if of_logprobs is not None:
        expected += of_logprobs[:, None] * (onehot - p)
    if of_entropy is not None:
        expected -= of_entropy[:, None] * p * (p.log() + entropy[:, None])
    statistics, rest = logit_statistics(logits.clone(), targets.clamp(0, 8), temperature=temperature, with_entropy=True)
    ours = logit_gradients(
        rest if normalised else logits, statistics, targets, temperature=temperature, grad_logprobs=of_logprobs,
        grad_entropy=of_entropy, normalised=normalised, dtype=torch.float64,
    )  # fmt: skip
    torch.testing.assert_close(ours, expected / temperature, rtol=1e-9, atol=1e-12)


def test_what_is_left_of_a_probability_near_1_is_exact():
    logits = torch.tensor([[20.0, 0.0]])  # 1 - p is 2.06e-9, and p rounds to 1
    whole = Statistics(torch.tensor([-2.0611536e-9]), torch.tensor([20.0]), None)
    grad = logit_gradients(
        logits, whole, torch.tensor([0]), temperature=1.0, grad_logprobs=torch.tensor([1.0]), grad_entropy=None,
        normalised=False, dtype=torch.float32,
    )  # fmt: skip
    torch.testing.assert_close(grad, torch.tensor([[2.0611536e-9, -2.0611536e-9]]), rtol=1e-5, atol=0)
