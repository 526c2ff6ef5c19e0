import pytest
import torch

from grpo.kernels.norm import rms_norm


@pytest.mark.parametrize("shape", [(3, 7), (2, 5, 24), (1, 4, 3, 8)])
def test_values_and_gradients_are_those_of_the_formula_in_float64(shape):
    generator = torch.Generator().manual_seed(0)
    hidden, given = (torch.randn(shape, generator=generator) for _ in range(2))
    weight = torch.randn(shape[-1], generator=generator)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    ours = rms_norm(hidden, weight, 0.3)
    x, w, g = hidden.detach().double(), weight.detach().double(), given.double()
    root = (x.square().sum(-1, keepdim=True) / shape[-1] + 0.3).sqrt()
    torch.testing.assert_close(ours.double(), x / root * w, rtol=1e-6, atol=1e-6)
    of_x = (g * w - x / root.square() * (g * w * x).mean(-1, keepdim=True)) / root
    of_w = (g * x / root).flatten(0, -2).sum(0)
    for one, other in zip(torch.autograd.grad(ours, leaves, given), (of_x, of_w), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_a_row_of_three_and_four():
    ours = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
    torch.testing.assert_close(ours, torch.tensor([[0.848528, 2.262742]]), rtol=1e-6, atol=1e-6)  # over sqrt(12.5)


def test_bfloat16_is_rounded_once():
    hidden = torch.full((1, 3), 1.0, dtype=torch.bfloat16)
    weight = torch.full((3,), 1.0 + 2**-7, dtype=torch.bfloat16)
    # 1 / sqrt(1.01) is 0.99504; times 1.0078 that is 1.00281, whose nearest bfloat16 is 1
    assert rms_norm(hidden, weight, 0.01).tolist() == [[1.0, 1.0, 1.0]]
