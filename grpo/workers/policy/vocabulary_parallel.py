"""Log-probs of chosen tokens where each rank of a group holds some rows of the output weight.

Each rank works out its own rows' log-softmax, chunk by chunk; ranks exchange three numbers a token, once for all
chunks, and make the log-probs and the entropy of the whole distribution from them. No rank ever holds logits of the
whole vocabulary, nor its own for more than a chunk of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from grpo.kernels.statistics import Statistics
from grpo.workers.policy.token_logprobs import TokenLogprobs, WideGradient, logprobs_of_rows


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
    return logprobs_of_rows(
        hidden, weight, targets, RowsOfRank(first_row, group), gradient,
        temperature=temperature, chunk_size=chunk_size, with_entropy=with_entropy,
    )  # fmt: skip


@dataclass(frozen=True)
class RowsOfRank:
    """`grpo.workers.policy.token_logprobs.VocabularyShare` of a rank of `group`."""

    first_row: int
    group: dist.ProcessGroup

    def whole(self, own: Statistics) -> Statistics:
        """Each rank's log-probs of tokens, logs of its sum of exponentials, and entropies, joined."""
        ranks = _gather(torch.stack([each for each in own if each is not None]), self.group)  # [ranks, 2 or 3, N]
        normaliser = torch.logsumexp(ranks[:, 1], 0)
        log_share = ranks[:, 1] - normaliser  # [ranks, N]
        logprobs = (ranks[:, 0] + log_share).amax(0)  # of the one rank that holds the token
        if own.entropy is None:
            return Statistics(logprobs, normaliser, None)
        entropy = (log_share.exp() * (ranks[:, 2] - log_share)).sum(0)  # of a mixture of disjoint parts
        return Statistics(logprobs, normaliser, entropy)

    def total(self, of_hidden: Tensor) -> None:
        """Sum over the ranks, in place."""
        dist.all_reduce(of_hidden, group=self.group)


def _gather(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    gathered = values.new_empty((group.size(), *values.shape))
    dist.all_gather(list(gathered), values, group=group)
    return gathered
