"""What Megatron asks extensions of apex and Transformer Engine for, in plain PyTorch. Imports Megatron-Core.

Without the extensions Megatron rounds every weight gradient before it is added up, and waits for the GPU at every
parameter to work a gradient norm out. Where Transformer Engine is installed Megatron would take its Adam, which counts
steps in parameter groups: torch's keeps the state that checkpoints hold, the same whatever is installed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from megatron.core import optimizer
from megatron.core.optimizer import clip_grads
from megatron.core.tensor_parallel import layers
from torch import Tensor

from grpo.kernels.products import added_product


class ProductAccumulation:
    """`fused_weight_gradient_mlp_cuda`."""

    @staticmethod
    def wgrad_gemm_accum_fp32(total_input: Tensor, grad_output: Tensor, main_grad: Tensor) -> None:
        """main_grad [out, in] float32 += grad_output.T @ total_input; [N, out] and [N, in] of the compute dtype."""
        added_product(main_grad, grad_output, total_input, torch.float32)


def l2_norm(_chunk: int, _overflow: Tensor, lists: Sequence[list[Tensor]], *_per_tensor: bool) -> tuple[Tensor, None]:
    """`multi_tensor_l2norm`: [1], of all tensors of one list together."""
    (tensors,) = lists
    return torch.nn.utils.get_total_norm(tensors).float().view(1), None


def scale(_chunk: int, _overflow: Tensor, lists: Sequence[list[Tensor]], factor: float) -> None:
    """`multi_tensor_scale`: the second list's tensors become the first's times a factor."""
    source, target = lists
    if source is not target:
        torch._foreach_copy_(target, source)
    torch._foreach_mul_(target, factor)


def use_own_extensions() -> None:
    """Give Megatron these in place of its own ways or Transformer Engine's; more than once is the same as once."""
    layers.fused_weight_gradient_mlp_cuda = ProductAccumulation
    layers._grad_accum_fusion_available = True  # noqa: SLF001
    clip_grads.l2_norm_impl = l2_norm
    clip_grads.multi_tensor_scale_impl = scale
    optimizer.USING_PYTORCH_OPTIMIZER = True  # torch.optim.AdamW
