"""A training loop in plain PyTorch, as good as we can write one: what the policy worker is measured against.

The worker's kernels: its layers in the compute dtype over float32 masters, its chunked log-probs, its gradients added
up in float32 by the products that make them; fused AdamW. Its packs lie on the device beforehand; it has no metrics, no
checks, no protocol.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from benchmarks.gpu.settings import ADAMW, MAX_GRAD_NORM
from benchmarks.gpu.work import CLIP, Pack
from grpo.workers.policy.architecture import output_weight
from grpo.workers.policy.attention import PackedBounds
from grpo.workers.policy.layers import use_own_layers
from grpo.workers.policy.precision import RoundedCopy
from grpo.workers.policy.token_logprobs import token_logprobs


class BareLoop:
    """Holds weights and optimizer; `update` is forward, backward and optimizer step over all packs."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, *, checkpointing: bool = False) -> None:
        """`model` has float32 weights on the device where it is to be trained, and becomes this loop's own."""
        use_own_layers(model)
        self._rounded = None if dtype == torch.float32 else RoundedCopy(model, dtype)
        self.model = model if self._rounded is None else self._rounded.module
        self.masters = list(model.parameters())
        self._head_gradient = None if self._rounded is None else self._rounded.head_gradient
        self._checkpointing = checkpointing
        self._optimizer = torch.optim.AdamW(
            self.masters, lr=ADAMW["lr"], betas=tuple(ADAMW["betas"]), eps=ADAMW["eps"],
            weight_decay=ADAMW["weight_decay"], fused=True,
        )  # fmt: skip

    @property
    def output_weight(self) -> Tensor:
        """[V, H], in the compute dtype."""
        return output_weight(self.model)

    def update(self, packs: list[Pack]) -> Tensor:
        """The loss, still on the device."""
        loss = self.backward(packs)
        norm = torch.nn.utils.get_total_norm([each.grad for each in self.masters if each.grad is not None])
        if float(norm) > MAX_GRAD_NORM:
            torch.nn.utils.clip_grads_with_norm_(self.masters, MAX_GRAD_NORM, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._rounded is not None:
            self._rounded.refresh()
        return loss

    def backward(self, packs: list[Pack]) -> Tensor:
        """Gradients of the whole loss into the masters."""
        tokens = sum(each.targets.numel() for each in packs)
        total = torch.zeros((), device=packs[0].targets.device)
        for pack in packs:
            loss = clipped_loss(self.logprobs(pack), pack) / tokens
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def logprobs(self, pack: Pack) -> Tensor:
        """[N]"""
        weight = output_weight(self.model)
        return token_logprobs(self.states(pack), weight, pack.targets, gradient=self._head_gradient).logprobs

    def states(self, pack: Pack) -> Tensor:
        """[N, H]: hidden states that predict the trained tokens."""
        trunk: Any = self.model.get_decoder()  # type: ignore[no-untyped-call]
        packed = PackedBounds(pack.lengths, pack.bounds)
        if not self._checkpointing:
            hidden = trunk(input_ids=pack.input_ids, position_ids=pack.position_ids, use_cache=False, packed=packed)[0]
        else:
            hidden = self._checkpointed(trunk, pack, packed)
        return cast("Tensor", hidden)[0].index_select(0, pack.predictors)

    def _checkpointed(self, trunk: Any, pack: Pack, packed: PackedBounds) -> Tensor:
        hidden = trunk.embed_tokens(pack.input_ids)
        angles = trunk.rotary_emb(hidden, pack.position_ids)
        for layer in trunk.layers:
            hidden = checkpoint(
                layer, hidden, attention_mask=None, position_ids=pack.position_ids, position_embeddings=angles,
                packed=packed, use_reentrant=False, preserve_rng_state=False,
            )  # fmt: skip
        return cast("Tensor", trunk.norm(hidden))


def clipped_loss(logprobs: Tensor, pack: Pack) -> Tensor:
    """Sum over tokens of -min(rho A, clip(rho) A), rho = exp(l - l_old)."""
    ratio = (logprobs - pack.old_logprobs).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    return -torch.minimum(ratio * pack.advantages, clipped * pack.advantages).sum()
