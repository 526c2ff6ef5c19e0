"""The decoder layers of transformers with this project's own forward passes: fewer kernels, the same numbers.

transformers computes norms, rotary embeddings and activations one operation at a time, which on a GPU takes a quarter
of an update. Modules, parameters and their names stay as they are; so do hooks on them (tensor parallelism, FSDP).
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedModel

from grpo.kernels.norm import rms_norm
from grpo.kernels.rotary import rotary
from grpo.kernels.swiglu import swiglu
from grpo.workers.policy.attention import PackedBounds, causal_attention, without_masks

NORMS_HEADS = ("qwen3",)


def use_own_layers(model: PreTrainedModel) -> None:
    """Change the forward passes of a Llama 3.x, Qwen 2.5 or Qwen 3 model, which then takes `packed` and no mask."""
    without_masks(model)
    decoder = model.get_decoder()  # type: ignore[no-untyped-call]
    norms_heads = model.config.model_type in NORMS_HEADS
    for layer in decoder.layers:
        _become(layer.input_layernorm, Norm)
        _become(layer.post_attention_layernorm, Norm)
        _become(layer.self_attn, HeadNormAttention if norms_heads else Attention)
        if norms_heads:
            _become(layer.self_attn.q_norm, Norm)
            _become(layer.self_attn.k_norm, Norm)
        if model.config.hidden_act == "silu":
            _become(layer.mlp, GatedMLP)
    _become(decoder.norm, Norm)


def _become(module: nn.Module, forward: type) -> None:
    kind: type = type(module)
    module.__class__ = _with_forward(kind, forward)


@functools.cache
def _with_forward(kind: type, forward: type) -> type:
    return kind if issubclass(kind, forward) else type(kind.__name__, (forward, kind), {})


class Norm:
    """Forward pass of a RMSNorm with `weight` and `variance_epsilon`."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden: Tensor) -> Tensor:
        if not isinstance(hidden, DTensor):
            return rms_norm(hidden, self.weight, self.variance_epsilon)
        # Over tensor parallel ranks each norms its own rows; the gradient of the weight is then a part of the whole.
        assert isinstance(self.weight, DTensor)
        weight = self.weight.to_local()
        if isinstance(hidden.placements[0], Shard):
            weight = cast("Tensor", _Shared.apply(weight, hidden.device_mesh.get_group()))  # type: ignore[no-untyped-call]
        normed = rms_norm(hidden.to_local(), weight, self.variance_epsilon)
        return DTensor.from_local(normed, hidden.device_mesh, hidden.placements, run_check=False)


class _Shared(torch.autograd.Function):
    """A weight that ranks use for different tokens: their gradients are summed, in float32 or wider.

    DTensor would sum them in the dtype of the weight.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].to(torch.promote_types(grads[0].dtype, torch.float32), copy=True)
        dist.all_reduce(total, group=ctx.group)
        return total.to(grads[0].dtype), None


class GatedMLP:
    """Forward pass of an MLP whose activation is silu."""

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, hidden: Tensor) -> Tensor:
        down: Tensor = self.down_proj(swiglu(self.gate_proj(hidden), self.up_proj(hidden)))
        return down


class Attention:
    """Forward pass of a self-attention; heads stay beside their token, where attention's kernel wants them."""

    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module
    head_dim: int
    scaling: float

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: None = None,
        packed: PackedBounds | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        assert attention_mask is None, "this attention has no use for a mask"
        heads = (*hidden_states.shape[:2], -1, self.head_dim)
        query, key, value = (each(hidden_states).view(heads) for each in (self.q_proj, self.k_proj, self.v_proj))
        query, key = self.normed(query, key)
        query, key = rotary(query, key, *position_embeddings)
        attended = causal_attention(query, key, value, scaling=self.scaling, packed=packed)
        return self.o_proj(attended.flatten(2)), None

    def normed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Heads as the rotary embedding is given them."""
        return query, key


class HeadNormAttention(Attention):
    """The same where each head is normed."""

    q_norm: nn.Module
    k_norm: nn.Module

    def normed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(query), self.k_norm(key)
