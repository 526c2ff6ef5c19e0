import pytest
import torch

from grpo.kernels.swiglu import swiglu, swiglu_joined


@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 7)])
def test_values_and_gradients_are_those_of_the_formula_in_float64(shape):
    generator = torch.Generator().manual_seed(0)
    gate, up, given = (torch.randn(shape, generator=generator) * 3 for _ in range(3))
    g, u, d = gate.double(), up.double(), given.double()
    sigmoid = 1 / (1 + (-g).exp())
    value, of_gate, of_up = g * sigmoid * u, d * u * (sigmoid + g * sigmoid * (1 - sigmoid)), d * g * sigmoid
    leaves = [gate.requires_grad_(), up.requires_grad_()]
    ours = swiglu(*leaves)
    torch.testing.assert_close(ours.double(), value, rtol=1e-6, atol=1e-6)
    for one, other in zip(torch.autograd.grad(ours, leaves, given), (of_gate, of_up), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)
    joined = torch.cat(leaves, -1).detach().requires_grad_()
    ours = swiglu_joined(joined)
    torch.testing.assert_close(ours.double(), value, rtol=1e-6, atol=1e-6)
    (of_both,) = torch.autograd.grad(ours, joined, given)
    torch.testing.assert_close(of_both.double(), torch.cat((of_gate, of_up), -1), rtol=1e-5, atol=1e-6)
