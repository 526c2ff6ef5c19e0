import math

import pytest
import torch

from grpo.algorithm.layout import TokenLayout
from grpo.algorithm.loss import policy_loss


def one_sequence(count):
    return TokenLayout(torch.ones(count, dtype=torch.bool), torch.zeros(count, dtype=torch.int64), 1)


def run(advantages, log_ratios, *, layout=None, logprobs=None, **options):
    """Losses, d loss / d l, and the result, for tokens of these log-ratios."""
    log_ratios = torch.tensor(log_ratios, dtype=torch.float64)
    logprobs = torch.full_like(log_ratios, -1.5) if logprobs is None else torch.tensor(logprobs, dtype=torch.float64)
    old = logprobs - log_ratios
    logprobs.requires_grad_()
    result = policy_loss(
        logprobs, old, torch.tensor(advantages, dtype=torch.float64), layout or one_sequence(len(old)),
        **{"kind": "clipped", "clip_min": 0.2, "clip_max": 0.28, **options},
    )  # fmt: skip
    result.losses.sum().backward()
    return result.losses.tolist(), logprobs.grad.tolist(), result


@pytest.mark.parametrize(
    ("advantage", "ratio", "dual_clip", "expected"),
    [
        (1, 1.5, None, (-1.28, 0, True)),
        (1, 0.5, None, (-0.5, -0.5, False)),
        (-1, 1.5, None, (1.5, 1.5, False)),
        (-1, 0.5, None, (0.8, 0, True)),
        (-1, 10, None, (10, 10, False)),
        (-1, 10, 3.0, (3, 0, True)),
        (1, 10, 3.0, (-1.28, 0, True)),  # dual clip is for negative advantages
        (-1, 2.5, 3.0, (2.5, 2.5, False)),
        (-1, 0.5, 3.0, (0.8, 0, True)),
        (0, 10, 3.0, (0, 0, False)),
        (1, 1, None, (-1, -1, False)),
    ],
)
def test_clipped(advantage, ratio, dual_clip, expected):
    loss, gradient, clipped = expected
    losses, gradients, result = run([advantage], [math.log(ratio)], dual_clip=dual_clip)
    assert losses == pytest.approx([loss])
    assert gradients == pytest.approx([gradient])
    assert result.clipped.tolist() == [clipped]
    assert result.ratios.tolist() == pytest.approx([ratio])
    assert not result.ratios.requires_grad


@pytest.mark.parametrize("sign", [1, -1])
def test_the_log_ratio_is_clamped_at_20(sign):
    losses, gradients, _ = run([-1.0, -1.0], [sign * 19.9, sign * 500.0], clip_min=0.999999999999, clip_max=1e30)
    assert losses == pytest.approx([math.exp(sign * 19.9), math.exp(sign * 20)])
    assert gradients == pytest.approx([math.exp(sign * 19.9), 0.0])


def test_gspo_ratio_is_the_geometric_mean():
    losses, gradients, result = run([1.0] * 3, [0.1, 0.1, 0.4], kind="gspo", clip_max=0.3)
    assert result.ratios.tolist() == pytest.approx([1.221403] * 3, abs=1e-6)
    assert losses == pytest.approx([-1.221403] * 3, abs=1e-6)
    assert gradients == pytest.approx([-1.221403] * 3, abs=1e-6)  # three losses, each a third of the gradient


def test_gspo_sequences_and_masked_tokens_are_apart():
    mask = torch.tensor([True, True, False, True, False])
    layout = TokenLayout(mask, torch.tensor([0, 1, 0, 0, 2]), 3)
    _, gradients, result = run([1, 1, 0, 1, 0], [0.1, 0.2, 9.0, 0.3, 7.0], layout=layout, kind="gspo", clip_max=0.5)
    assert result.ratios[mask].tolist() == pytest.approx([math.exp(0.2)] * 3)
    assert gradients == pytest.approx([-math.exp(0.2)] * 2 + [0] + [-math.exp(0.2)] + [0])


def test_gspo_clips_a_whole_sequence():
    losses, gradients, result = run([1.0] * 2, [0.0, 0.8], kind="gspo")
    assert losses == pytest.approx([-1.28] * 2)
    assert gradients == [0.0, 0.0]
    assert result.clipped.tolist() == [True, True]


@pytest.mark.parametrize(("ratio", "bounded"), [(1.5, 1.28), (0.5, 0.8), (1.1, 1.1)])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_keeps_the_gradient_of_clipped_tokens(advantage, ratio, bounded):
    losses, gradients, result = run([advantage], [math.log(ratio)], kind="cispo", logprobs=[-3.0])
    assert losses == pytest.approx([bounded * advantage * 3.0])
    assert gradients == pytest.approx([-bounded * advantage])
    assert result.clipped.tolist() == [ratio != bounded]


@pytest.mark.parametrize("kind", ["clipped", "gspo", "cispo"])
def test_on_policy_the_gradient_is_that_of_reinforce(kind):
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages = torch.tensor([1.5, 1.5, 1.5])
    result = policy_loss(
        logprobs, logprobs.detach(), advantages, one_sequence(3), kind=kind, clip_min=0.2, clip_max=0.2
    )
    result.losses.sum().backward()
    assert result.ratios.tolist() == [1.0] * 3
    torch.testing.assert_close(logprobs.grad, -advantages)
