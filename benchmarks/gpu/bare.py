"""A training loop in plain PyTorch, as good as we can write one: what the policy worker is measured against.

transformers' module in the compute dtype over float32 masters, the same attention kernel and the same chunked
log-probs as the worker, gradients added up in float32 as each is ready, fused AdamW. Its packs lie on the device
beforehand; it has no metrics, no checks, no protocol.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel

from benchmarks.gpu.settings import ADAMW, MAX_GRAD_NORM
from benchmarks.gpu.work import CLIP, Pack
from grpo.workers.policy.token_logprobs import token_logprobs

ATTENTION = "bare_packed"


class BareLoop:
    """Holds weights and optimizer; `update` is forward, backward and optimizer step over all packs."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, *, checkpointing: bool = False) -> None:
        """`model` has float32 weights on the device where it is to be trained, and becomes this loop's own."""
        AttentionInterface.register(ATTENTION, packed_attention)
        self.masters = [nn.Parameter(each.detach()) for each in model.parameters()]
        memo: dict[int, object] = {}
        if dtype == torch.float32:
            self.masters = list(model.parameters())
            self.model = model
        else:
            memo |= {id(each): nn.Parameter(each.detach().to(dtype)) for each in model.parameters()}
            self.model = copy.deepcopy(model, memo)  # buffers keep their dtype
        self.model.set_attn_implementation(ATTENTION)
        self._rounded = list(self.model.parameters())
        if dtype != torch.float32:
            for master, rounded in zip(self.masters, self._rounded, strict=True):
                rounded.register_post_accumulate_grad_hook(_into(master))  # type: ignore[no-untyped-call]
        self._checkpointing = checkpointing
        self._optimizer = torch.optim.AdamW(
            self.masters, lr=ADAMW["lr"], betas=tuple(ADAMW["betas"]), eps=ADAMW["eps"],  # type: ignore[arg-type]
            weight_decay=ADAMW["weight_decay"], fused=True,
        )  # fmt: skip

    def update(self, packs: list[Pack]) -> Tensor:
        """The loss, still on the device."""
        loss = self.backward(packs)
        norm = torch.nn.utils.get_total_norm([each.grad for each in self.masters if each.grad is not None])
        if float(norm) > MAX_GRAD_NORM:
            torch.nn.utils.clip_grads_with_norm_(self.masters, MAX_GRAD_NORM, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._rounded[0] is not self.masters[0]:
            with torch.no_grad():
                torch._foreach_copy_(self._rounded, self.masters)
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
        return token_logprobs(self.states(pack), self.model.get_output_embeddings().weight, pack.targets).logprobs

    def states(self, pack: Pack) -> Tensor:
        """[N, H]: hidden states that predict the trained tokens."""
        trunk: Any = self.model.get_decoder()
        if not self._checkpointing:
            hidden = trunk(input_ids=pack.input_ids, position_ids=pack.position_ids, use_cache=False, pack=pack)[0]
        else:
            hidden = self._checkpointed(trunk, pack)
        return cast("Tensor", hidden)[0].index_select(0, pack.predictors)

    def _checkpointed(self, trunk: Any, pack: Pack) -> Tensor:
        hidden = trunk.embed_tokens(pack.input_ids)
        angles = trunk.rotary_emb(hidden, pack.position_ids)
        for layer in trunk.layers:
            hidden = checkpoint(
                layer, hidden, attention_mask=None, position_ids=pack.position_ids, position_embeddings=angles,
                pack=pack, use_reentrant=False, preserve_rng_state=False,
            )  # fmt: skip
        return cast("Tensor", trunk.norm(hidden))


def clipped_loss(logprobs: Tensor, pack: Pack) -> Tensor:
    """Sum over tokens of -min(rho A, clip(rho) A), rho = exp(l - l_old)."""
    ratio = (logprobs - pack.old_logprobs).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    return -torch.minimum(ratio * pack.advantages, clipped * pack.advantages).sum()


def packed_attention(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: None, *, scaling: float, pack: Pack, **_: Any
) -> tuple[Tensor, None]:
    """[1, heads, W, D] -> [1, W, heads, D]; each sequence sees itself alone."""
    if query.is_cuda and query.dtype != torch.float32:
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
        k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
        longest = max(pack.lengths)
        output = varlen_attn(q, k, v, pack.bounds, pack.bounds, longest, longest, scale=scaling, window_size=(-1, 0))
        return cast("Tensor", output)[None], None
    parts = [
        scaled_dot_product_attention(*each, is_causal=True, scale=scaling, enable_gqa=True)
        for each in zip(*(torch.split(each, pack.lengths, 2) for each in (query, key, value)), strict=True)
    ]
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


def _into(master: nn.Parameter) -> Any:
    @torch.no_grad()
    def add(rounded: Tensor) -> None:
        assert rounded.grad is not None
        if master.grad is None:
            master.grad = rounded.grad.float()
        else:
            master.grad += rounded.grad
        rounded.grad = None

    return add
