"""Log-softmax of a chunk of logits at chosen tokens, its entropy, and the gradient of the logits.

On a GPU the logits are read once forward and once backward, and the gradient leaves rounded to the compute dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpo.kernels.dispatch import has_kernel
from grpo.kernels.statistics import Statistics, at_target


def is_normalised(rest: Tensor) -> bool:
    """Whether what `logit_statistics` leaves holds log-probs; on a GPU it is the logits, as they were."""
    return not has_kernel(rest)


def logit_statistics(
    logits: Tensor, targets: Tensor, *, temperature: float, with_entropy: bool
) -> tuple[Statistics, Tensor]:
    """Statistics, and [N, V] that `logit_gradients` can start from.

    logits [N, V] float32 or float64, which may be overwritten; targets [N] int64: outside 0 .. V - 1 they are others'.
    """
    if has_kernel(logits):
        from grpo.kernels.gpu.logits import statistics

        return Statistics(*statistics(logits, targets, temperature, with_entropy=with_entropy)), logits
    scaled = logits if temperature == 1.0 else logits.div_(temperature)
    log_p = torch.log_softmax(scaled, dim=-1)
    own = (targets >= 0) & (targets < logits.shape[1])
    column = targets.where(own, 0)[:, None]
    chosen = log_p.gather(1, column)[:, 0]
    normaliser = scaled.gather(1, column)[:, 0] - chosen
    entropy = entropy_of(log_p) if with_entropy else None
    return Statistics(chosen.masked_fill(~own, -torch.inf), normaliser, entropy), log_p


def entropy_of(log_p: Tensor) -> Tensor:
    """[N]: -sum p log p of [N, V] log-probs."""
    entropy: Tensor = torch.linalg.vecdot(log_p.exp(), log_p)
    return entropy.neg()


def logit_gradients(
    logits: Tensor,
    whole: Statistics,
    targets: Tensor,
    *,
    temperature: float,
    grad_logprobs: Tensor | None,
    grad_entropy: Tensor | None,
    normalised: bool,
    dtype: torch.dtype,
) -> Tensor:
    """[N, V] of `dtype`: (grad_logprobs (onehot - p) - grad_entropy p (log p + entropy)) / temperature.

    logits [N, V], which may be overwritten, log-probs where `normalised`; `whole` is of the whole distribution, where
    several ranks have a part of it. Targets outside 0 .. V - 1 are another rank's: their onehot is 0 here.
    """
    of_logprobs, of_entropy = (None if each is None else each / temperature for each in (grad_logprobs, grad_entropy))
    if has_kernel(logits):
        from grpo.kernels.gpu.logits import gradients

        assert not normalised, "on a GPU logits are kept as they were"
        return gradients(logits, whole, targets, temperature, of_logprobs, of_entropy, dtype=dtype)
    log_p = logits
    if not normalised:
        log_p = (logits if temperature == 1.0 else logits.div_(temperature)).sub_(whole.normaliser[:, None])
    return _gradients_of_log_probs(log_p, whole, targets, of_logprobs, of_entropy).to(dtype)


def _gradients_of_log_probs(
    log_p: Tensor, whole: Statistics, targets: Tensor, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
) -> Tensor:
    grad = log_p.exp()
    if grad_logprobs is None and grad_entropy is None:
        return grad.zero_()
    own = (targets >= 0) & (targets < log_p.shape[1])
    column = targets.where(own, 0)[:, None]
    of_entropy: Tensor | float = 0.0  # at the target
    if grad_entropy is not None:
        assert whole.entropy is not None, "a gradient of an entropy that was not asked for"
        of_entropy = -grad_entropy * whole.logprobs.exp() * (whole.logprobs + whole.entropy)
        # -p ((g_l + g_e entropy) + g_e log p)
        constant = grad_entropy * whole.entropy + (0.0 if grad_logprobs is None else grad_logprobs)
        grad.mul_(torch.addcmul(constant[:, None], log_p, grad_entropy[:, None]).neg_())
    else:
        assert grad_logprobs is not None
        grad.mul_(grad_logprobs[:, None].neg())
    if grad_logprobs is not None:
        chosen = at_target(whole, grad_logprobs) + of_entropy
        grad.scatter_(1, column, torch.where(own, chosen, grad.gather(1, column)[:, 0])[:, None])
    return grad
