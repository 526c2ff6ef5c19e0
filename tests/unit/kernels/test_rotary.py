import pytest
import torch

from grpo.kernels.rotary import rotary


@pytest.mark.parametrize(("tokens", "of_angles"), [((1, 6), (1, 6)), ((3, 5), (1, 5)), ((4, 2), (4, 1))])
@pytest.mark.parametrize("heads", [(4, 2), (3, 1)])
def test_pairs_are_turned_as_complex_numbers(tokens, of_angles, heads):
    generator = torch.Generator().manual_seed(0)
    angles = torch.rand(*of_angles, 3, generator=generator) * 9
    query, key = (torch.randn(*tokens, count, 6, generator=generator) for count in heads)
    for ours, given in zip(rotary(query, key, angles.cos(), angles.sin()), (query, key), strict=True):
        turned = torch.complex(*given.double().chunk(2, -1)) * torch.exp(1j * angles.double())[:, :, None]
        expected = torch.cat((turned.real, turned.imag), -1)
        torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_gradient_turns_back():
    angles = torch.linspace(0, 5, 8).view(1, 4, 2)
    query, key = torch.randn(2, 4, 3, 4, dtype=torch.float64), torch.randn(2, 4, 1, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda q, k: rotary(q, k, angles.cos(), angles.sin()), (query.requires_grad_(), key.requires_grad_())
    )


def test_bfloat16_is_rounded_once():
    heads = torch.tensor([1.0, 1.0], dtype=torch.bfloat16).view(1, 1, 1, 2)
    c, s = (torch.tensor([[[value]]], dtype=torch.bfloat16) for value in (1.0, 0.00390625))
    turned, _ = rotary(heads, heads, c, s)
    # 1 - 2^-8 is a bfloat16; 1 + 2^-8 lies half way and goes to the even one
    assert turned.flatten().tolist() == [0.99609375, 1.0]
