"""Estimates of KL(policy || reference) from sampled tokens (joschu.net/blog/kl-approx), in log x = l_ref - l."""

from typing import Literal

import torch
from torch import Tensor

from grpo.algorithm.layout import TokenLayout

KLKind = Literal["k1", "k2", "k3"]


def kl_estimates(
    logprobs: Tensor,
    reference_logprobs: Tensor,
    mask: Tensor,
    *,
    kind: KLKind,
    input_clamp: float | None = 20.0,
    output_clamp: float | None = 10.0,
) -> Tensor:
    """Per token [T], 0 where the mask is false: k1 = -log x, k2 = (log x)^2 / 2, k3 = x - 1 - log x.

    log x is clamped to +-input_clamp and the estimate to +-output_clamp (None: not at all); beyond a clamp there is no
    gradient. Masked positions may hold anything.
    """
    log_x = torch.where(mask, reference_logprobs - logprobs, 0.0)
    if input_clamp is not None:
        log_x = log_x.clamp(-input_clamp, input_clamp)
    if kind == "k1":
        estimates = -log_x
    elif kind == "k2":
        estimates = 0.5 * log_x.square()
    elif kind == "k3":
        estimates = log_x.expm1() - log_x
    else:
        raise ValueError(f"KL estimator {kind!r}: k1, k2 or k3")
    return estimates if output_clamp is None else estimates.clamp(-output_clamp, output_clamp)


def on_policy_gradient(estimates: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
    """Estimates k [T] as k exp(l - sg(l)): the same values, with the gradient of the expectation (arXiv 2506.09477).

    A bare k1 has no expected gradient, and a bare k3 that of another divergence, because the tokens' distribution moves
    too. Written as k + sg(k) (l - sg(l)), which has the same value and gradient and cannot overflow.
    """
    return estimates + estimates.detach() * torch.where(mask, logprobs - logprobs.detach(), 0.0)


def sequence_kl(
    logprobs: Tensor,
    reference_logprobs: Tensor,
    layout: TokenLayout,
    *,
    kind: KLKind,
    input_clamp: float | None = 20.0,
    output_clamp: float | None = 10.0,
) -> Tensor:
    """KL of each sequence [b], the sum over its trained tokens, without gradient: for a KL term in the reward.

    The reward is then r - coefficient x sequence_kl.
    """
    with torch.no_grad():
        estimates = kl_estimates(
            logprobs, reference_logprobs, layout.mask, kind=kind, input_clamp=input_clamp, output_clamp=output_clamp
        )
        return layout.sum(estimates)
