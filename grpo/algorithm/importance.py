"""Train/inference correction: weights for tokens that another program's numerics sampled.

The engine samples with log-probs l_gen, the trainer computes l_old for the same weights. The weight multiplies the
loss of every kind alike. It uses l_old, never the log-prob being trained, and carries no gradient: it is the same in
every mini-batch of a step.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grpo.algorithm.layout import TokenLayout

CorrectionKind = Literal["token", "sequence", "tis", "mis", "icepop", "seq-mask-tis"]


@dataclass(frozen=True)
class ImportanceWeights:
    weights: Tensor  # [T], 1 where the mask is false
    nonfinite: Tensor  # [T] bool: trained tokens whose difference or weight is not finite; their weight is 0
    outside: Tensor | None  # [T] bool: finite trained tokens outside the kind's bounds; None where it has none
    outside_sequences: Tensor | None  # [b] bool: dropped sequences of seq-mask-tis


def importance_weights(
    old_logprobs: Tensor,
    generation_logprobs: Tensor,
    layout: TokenLayout,
    *,
    kind: CorrectionKind,
    cap: float = 2.0,
    minimum: float | None = None,
    maximum: float | None = None,
) -> ImportanceWeights:
    """Weights [T] from d = l_old - l_gen.

    - token: exp(d). sequence: exp(sum of d over the sequence), the product, not its geometric mean.
    - tis: min(exp(d), cap). mis: exp(d) up to cap, else 0. icepop: exp(d) inside [minimum, maximum], else 0.
    - seq-mask-tis: exp(d), uncapped, and 0 for every token of a sequence whose geometric mean is outside
      [minimum, maximum].

    A non-finite d gives weight 0 and is counted, before any bound. Under `sequence` and `seq-mask-tis` the figure of
    its sequence is then unknown, so the whole sequence gets 0. An uncapped weight that overflows the dtype counts as
    non-finite too: it could only turn the loss into infinity. Masked positions may hold anything.
    """
    with torch.no_grad():
        mask = layout.mask
        difference = torch.where(mask, old_logprobs - generation_logprobs, 0.0)
        finite = difference.isfinite()
        outside: Tensor | None = None
        dropped: Tensor | None = None
        weights = layout.spread(layout.sum(difference).exp()) if kind == "sequence" else difference.exp()
        if kind == "tis":
            outside = weights > cap
            weights = weights.clamp(max=cap)
        elif kind == "mis":
            outside = weights > cap
            weights = torch.where(outside, 0.0, weights)
        elif kind == "icepop":
            low, high = _bounds(kind, minimum, maximum)
            outside = (weights < low) | (weights > high)
            weights = torch.where(outside, 0.0, weights)
        elif kind == "seq-mask-tis":
            low, high = _bounds(kind, minimum, maximum)
            geometric_mean = layout.mean(difference).exp()
            dropped = ~((geometric_mean >= low) & (geometric_mean <= high))
            outside = layout.spread(dropped) & mask
            weights = torch.where(outside, 0.0, weights)
        elif kind not in ("token", "sequence"):
            raise ValueError(f"correction {kind!r}: token, sequence, tis, mis, icepop or seq-mask-tis")
        usable = finite & weights.isfinite()
        weights = torch.where(usable, weights, 0.0)
        return ImportanceWeights(
            torch.where(mask, weights, 1.0), ~usable & mask, None if outside is None else outside & finite, dropped
        )


def _bounds(kind: str, minimum: float | None, maximum: float | None) -> tuple[float, float]:
    if minimum is None or maximum is None or not minimum <= maximum:
        raise ValueError(f"{kind} needs minimum <= maximum, not {minimum} and {maximum}")
    return minimum, maximum
