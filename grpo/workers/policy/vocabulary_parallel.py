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

from grpo.kernels.logits import Statistics, is_normalised
from grpo.workers.policy.token_logprobs import Pieces, TokenLogprobs, WideGradient, chunk_sizes, default_chunk_size


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
    gradient: WideGradient | None = None,
) -> TokenLogprobs:
    """What `token_logprobs` gives for the rows of all ranks, the same on every rank, and its gradients.

    hidden [N, H] and targets [N] int64, ids of the whole vocabulary, are the same on every rank; weight [V_rank, H]
    holds the rows from `first_row` on. The gradient of `hidden` is the whole one on every rank, that of `weight` is of
    its own rows. Dtypes and chunks are those of `token_logprobs`.
    """
    chunk = default_chunk_size(weight.shape[0], weight.device) if chunk_size is None else chunk_size
    values = _VocabularyParallel.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, first_row, group, temperature, chunk, with_entropy, gradient
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
        gradient: WideGradient | None,
    ) -> tuple[Tensor, Tensor | None]:
        local = targets - first_row
        ctx.pieces = Pieces(chunk_sizes(len(hidden), chunk, hidden.device), temperature, gradient)
        own, kept = ctx.pieces.statistics(
            hidden, weight, local, with_entropy=with_entropy, keep=hidden.requires_grad or weight.requires_grad
        )
        # log-prob of the token within the rank's rows, log of the rank's share before normalising, their entropy
        ranks = _gather(torch.stack([each for each in own if each is not None]), group)  # [ranks, 2 or 3, N]
        normaliser = torch.logsumexp(ranks[:, 1], 0)
        log_share = ranks[:, 1] - normaliser  # [ranks, N]
        logprobs = (ranks[:, 0] + log_share).amax(0)  # of the one rank that holds the token
        # entropy of a mixture of disjoint parts
        entropy = (log_share.exp() * (ranks[:, 2] - log_share)).sum(0) if with_entropy else None
        if kept is not None and is_normalised(kept):
            kept.add_((own.normaliser - normaliser)[:, None])
        ctx.save_for_backward(hidden, weight, local, logprobs, normaliser, entropy, kept)
        ctx.group = group
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, local, logprobs, normaliser, entropy, kept = ctx.saved_tensors
        whole = Statistics(logprobs, normaliser, entropy)
        of_hidden, of_weight = ctx.pieces.gradients(
            hidden, weight, local, whole=whole, kept=kept, grads=grads, needed=ctx.needs_input_grad[:2]
        )
        if of_hidden is not None:
            dist.all_reduce(of_hidden, group=ctx.group)
        return of_hidden, of_weight, None, None, None, None, None, None, None


def _gather(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    gathered = values.new_empty((group.size(), *values.shape))
    dist.all_gather(list(gathered), values, group=group)
    return gathered
