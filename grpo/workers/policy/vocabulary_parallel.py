"""Log-probs of chosen tokens where each rank of a group holds some rows of the output weight.

Each rank works out its own rows' log-softmax, chunk by chunk; ranks exchange three numbers a token, once for all
chunks, and make the log-probs and the entropy of the whole distribution from them. No rank ever holds logits of the
whole vocabulary, nor its own for more than a chunk of tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from grpo.workers.policy.token_logprobs import (
    TokenLogprobs,
    add_weight_grad,
    default_chunk_size,
    entropy_of,
    grad_logits,
)


def vocabulary_parallel_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    first_row: int,
    group: dist.ProcessGroup,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    with_entropy: bool = False,
) -> TokenLogprobs:
    """What `token_logprobs` gives for the rows of all ranks, the same on every rank, and its gradients.

    hidden [N, H] and targets [N] int64, ids of the whole vocabulary, are the same on every rank; weight [V_rank, H]
    holds the rows from `first_row` on. The gradient of `hidden` is the whole one on every rank, that of `weight` is of
    its own rows. Dtypes and chunks are those of `token_logprobs`.
    """
    chunk = default_chunk_size(weight.shape[0], weight.device) if chunk_size is None else chunk_size
    values = _VocabularyParallel.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, first_row, group, temperature, chunk, with_entropy
    )
    return TokenLogprobs(*values)


class _VocabularyParallel(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (nor does it take a mapping)
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        first_row: int,
        group: dist.ProcessGroup,
        temperature: float,
        chunk: int,
        with_entropy: bool,  # noqa: FBT001 (`apply` takes no keywords)
    ) -> tuple[Tensor, Tensor | None]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        rounded = weight.to(hidden.dtype)
        count = hidden.shape[0]
        local = targets - first_row
        own = (local >= 0) & (local < weight.shape[0])
        local = local.where(own, 0)
        # log of the rank's share before normalising, log-prob of the token within the rank's rows, their entropy
        parts = torch.zeros((3 if with_entropy else 2, count), dtype=wide, device=hidden.device)
        log_p: Tensor | None = None
        for start in range(0, count, chunk):
            rows = slice(start, start + chunk)
            log_p = _logits(hidden[rows], rounded, temperature, wide)
            parts[0, rows] = torch.logsumexp(log_p, -1)
            log_p.sub_(parts[0, rows, None])
            parts[1, rows] = log_p.gather(1, local[rows, None])[:, 0]
            if with_entropy:
                parts[2, rows] = entropy_of(log_p)
        parts[1].masked_fill_(~own, -torch.inf)
        ranks = _gather(parts, group)  # [ranks, 2 or 3, N]
        normaliser = torch.logsumexp(ranks[:, 0], 0)
        log_share = ranks[:, 0] - normaliser  # [ranks, N]
        logprobs = (ranks[:, 1] + log_share).amax(0)  # of the one rank that holds the token
        # entropy of a mixture of disjoint parts
        entropy = (log_share.exp() * (ranks[:, 2] - log_share)).sum(0) if with_entropy else None
        kept = None
        if log_p is not None and count <= chunk and (hidden.requires_grad or weight.requires_grad):
            kept = log_p.add_((parts[0] - normaliser)[:, None])
        ctx.save_for_backward(hidden, weight, local, own, normaliser, entropy, kept)
        ctx.group, ctx.temperature, ctx.chunk = group, temperature, chunk
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_logprobs, grad_entropy = (None if each is None else each / ctx.temperature for each in grads)
        hidden, weight, local, own, normaliser, entropy, kept = ctx.saved_tensors
        wide = torch.promote_types(hidden.dtype, torch.float32)
        rounded = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device) if ctx.needs_input_grad[1] else None
        for start in range(0, hidden.shape[0], ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            log_p = kept
            if log_p is None:
                log_p = _logits(hidden[rows], rounded, ctx.temperature, wide).sub_(normaliser[rows, None])
            grad = grad_logits(
                log_p,
                local[rows],
                None if grad_logprobs is None else grad_logprobs[rows],
                None if grad_entropy is None else grad_entropy[rows],
                None if entropy is None else entropy[rows],
                own=own[rows],
            )
            del log_p
            if grad_weight is not None:
                add_weight_grad(grad_weight, grad, hidden[rows])
            if grad_hidden is not None:
                torch.mm(grad.to(hidden.dtype), rounded, out=grad_hidden[rows])
        if grad_hidden is not None:
            dist.all_reduce(grad_hidden, group=ctx.group)
        of_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, of_weight, None, None, None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    logits = (hidden @ weight.T).to(dtype)
    return logits if temperature == 1.0 else logits.div_(temperature)


def _gather(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    gathered = values.new_empty((group.size(), *values.shape))
    dist.all_gather(list(gathered), values, group=group)
    return gathered
