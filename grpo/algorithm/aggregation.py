"""From token losses to one number. Every aggregation is a weighted sum whose denominator is global.

The denominators are those of the whole optimizer batch (all micro-batches, all data-parallel ranks), so the sum over
micro-batches and ranks is the loss, however the batch was cut.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grpo.algorithm.layout import TokenLayout

Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]


@dataclass(frozen=True)
class Denominators:
    """Counts over the whole optimizer batch, context-parallel copies counted once."""

    tokens: float  # trained tokens
    sequences: float  # sequences with at least one trained token


def inverse(count: float) -> float:
    """1 / count, and 0 for nothing counted: a batch that trains no token then has loss and gradients of exactly 0."""
    return 1.0 / count if count > 0 else 0.0


def token_weights(
    layout: TokenLayout,
    denominators: Denominators,
    *,
    kind: Aggregation,
    norm_length: float | None,
    dtype: torch.dtype,
) -> Tensor:
    """Weight of each token's loss in the loss: [T] of `dtype`, exactly 0 where the mask is false, no gradient.

    token_mean is DAPO's (arXiv 2503.14476),
    seq_mean_token_mean GRPO's own (2402.03300), seq_mean_token_sum_norm Dr. GRPO's (2503.20783): token sums over a
    constant length. Raises ValueError where `norm_length` is needed and missing.
    """
    trained = layout.mask.to(dtype)
    if kind == "token_mean":
        return trained * inverse(denominators.tokens)
    per_sequence = inverse(denominators.sequences)
    if kind == "seq_mean_token_sum":
        return trained * per_sequence
    if kind == "seq_mean_token_mean":
        return trained * layout.spread((per_sequence / layout.sequence_tokens.clamp(min=1)).to(dtype))
    if kind != "seq_mean_token_sum_norm":
        raise ValueError(f"aggregation {kind!r}: token_mean, seq_mean_token_mean, _sum or _sum_norm")
    if norm_length is None or norm_length <= 0:
        raise ValueError(f"seq_mean_token_sum_norm needs a positive norm_length, not {norm_length}")
    return trained * (per_sequence / norm_length)


def aggregate(token_losses: Tensor, weights: Tensor) -> Tensor:
    """The scalar loss of this micro-batch; `token_losses` [T] must be finite wherever its weight is 0."""
    return (token_losses * weights).sum()
