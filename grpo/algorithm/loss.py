"""Token losses of the policy term, in l (the log-prob being trained), l_old, A (advantage) and rho = exp(l - l_old)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grpo.algorithm.layout import TokenLayout

LossKind = Literal["clipped", "gspo", "cispo"]
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class PolicyLoss:
    """`losses` carries the gradient; the rest is for metrics."""

    losses: Tensor  # [T], finite where the mask is false
    ratios: Tensor  # [T], rho (GSPO: the sequence's s), no gradient
    clipped: Tensor  # [T] bool: the clip, or the dual clip, decides this token's loss


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    layout: TokenLayout,
    *,
    kind: LossKind,
    clip_min: float,
    clip_max: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """The policy loss of each token [T]; `advantages` are per token, 0 where the mask is false.

    - clipped: max(-A rho, -A clip(rho, 1 - clip_min, 1 + clip_max)); with `dual_clip` c (arXiv 1912.09729), where A < 0
      the smaller of that and -A c.
    - gspo (2507.18071): the same in s = exp(mean of l - l_old over the sequence's trained tokens), one per sequence.
    - cispo (2506.13585): -sg(clip(rho)) A l.

    For the on-policy ratio give l.detach() as `old_logprobs`: rho is then 1 with the gradient of l. The log-ratio
    (GSPO: the mean log-ratio) is clamped to +-20; beyond it there is no gradient. Masked positions of the log-probs may
    hold anything.
    """
    # A subtraction hands gradients on untouched: one `where` behind it keeps masked NaN out of them and of the values.
    log_ratios = torch.where(layout.mask, logprobs - old_logprobs, 0.0)
    if kind == "cispo":
        with torch.no_grad():
            ratios = _ratio(log_ratios)
            bounded = ratios.clamp(1.0 - clip_min, 1.0 + clip_max)
        losses = -(bounded * advantages) * torch.where(layout.mask, logprobs, 0.0)
        return PolicyLoss(losses, ratios, bounded != ratios)
    if kind == "gspo":
        ratios = layout.spread(_ratio(layout.mean(log_ratios)))
    elif kind == "clipped":
        ratios = _ratio(log_ratios)
    else:
        raise ValueError(f"loss kind {kind!r}: clipped, gspo or cispo")
    return _clipped_surrogate(ratios, advantages, clip_min, clip_max, dual_clip)


def _ratio(log_ratios: Tensor) -> Tensor:
    return log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _clipped_surrogate(
    ratios: Tensor, advantages: Tensor, clip_min: float, clip_max: float, dual_clip: float | None
) -> PolicyLoss:
    """PPO's surrogate. Where a bound decides, the loss is a constant: `where` says so, and says where it happened."""
    surrogate = -advantages * ratios
    with torch.no_grad():
        bound = -advantages * ratios.clamp(1.0 - clip_min, 1.0 + clip_max)
        clipped = bound > surrogate
        if dual_clip is not None:
            ceiling = -advantages * dual_clip
            above = (advantages < 0) & (torch.maximum(surrogate, bound) > ceiling)
            bound = torch.where(above, ceiling, bound)
            clipped = clipped | above
    return PolicyLoss(torch.where(clipped, bound, surrogate), ratios.detach(), clipped)
