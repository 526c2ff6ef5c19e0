"""What stands in for extensions of apex and Transformer Engine, against their definitions."""

import warnings

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import optimizer
    from megatron.core.optimizer import clip_grads
    from megatron.core.tensor_parallel import layers

    from grpo.models.megatron.extensions import ProductAccumulation, l2_norm, scale, use_own_extensions
    from grpo.workers.megatron.main_gradient import MainGradient


def test_megatron_is_given_them():
    use_own_extensions()
    assert layers.fused_weight_gradient_mlp_cuda is ProductAccumulation
    assert layers._grad_accum_fusion_available
    assert (clip_grads.l2_norm_impl, clip_grads.multi_tensor_scale_impl) == (l2_norm, scale)
    assert optimizer.USING_PYTORCH_OPTIMIZER  # whatever else is installed


def test_weight_gradients_are_added_unrounded():
    total = torch.full((2, 3), 4.0)
    inputs, grads = torch.full((300, 3), 2.0**-8, dtype=torch.bfloat16), torch.ones(300, 2, dtype=torch.bfloat16)
    ProductAccumulation.wgrad_gemm_accum_fp32(inputs, grads, total)
    assert (total == 4 + 300 / 256).all()


def test_the_norm_of_all_tensors_together():
    norm, none = l2_norm(1, torch.zeros(1), [[torch.tensor([3.0, 0.0]), torch.tensor([[4.0], [12.0]])]], False)
    assert none is None
    assert norm.shape == (1,)
    assert norm.item() == pytest.approx(13.0)


@pytest.mark.parametrize("in_place", [True, False])
def test_scaling(in_place):
    source = [torch.tensor([2.0, 4.0]), torch.tensor([[6.0]])]
    target = source if in_place else [torch.zeros(2), torch.zeros(1, 1)]
    scale(1, torch.zeros(1), [source, target], 0.5)
    assert [each.flatten().tolist() for each in target] == [[1.0, 2.0], [3.0]]
    assert source[0].tolist() == ([1.0, 2.0] if in_place else [2.0, 4.0])


@pytest.mark.parametrize("embeds", [True, False])
def test_the_output_weights_gradient_is_in_megatrons_buffer_and_told_of_once(embeds):
    weight = torch.nn.Parameter(torch.zeros(2, 3, dtype=torch.bfloat16))
    weight.main_grad, weight.grad_added_to_main_grad = torch.ones(2, 3), False
    gradient = MainGradient(weight, embeds=embeds)
    for _ in range(2):
        gradient.add_product(torch.ones(5, 2, dtype=torch.bfloat16), torch.ones(5, 3, dtype=torch.bfloat16))
    assert (weight.main_grad == 11).all()
    told = gradient.for_autograd()
    assert (told is None) == embeds  # the embedding's own gradient is then still to be added
    assert weight.grad_added_to_main_grad == (not embeds)
