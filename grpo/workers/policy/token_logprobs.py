"""Log-probs of chosen tokens from hidden states, without logits for all tokens at once.

log_softmax(hidden @ weight.T / temperature) at the chosen token, and the exact entropy of that distribution. Tokens are
taken in chunks; the backward pass makes a chunk's logits again. A call that fits one chunk keeps its log-softmax, which
is what dense code would keep, and makes nothing twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

# Float32 logits that exist at once where `policy.logprob_chunk_size` is null. On a CPU about what its caches hold; on a
# GPU enough tokens that adding each chunk to a gradient as large as the output weight costs little beside the products.
CPU_CHUNK_BYTES, GPU_CHUNK_BYTES = 32 << 20, 512 << 20


class TokenLogprobs(NamedTuple):
    logprobs: Tensor  # [N] float32
    entropy: Tensor | None  # [N] float32


def default_chunk_size(vocab_size: int, device: torch.device) -> int:
    """Tokens whose float32 logits take about 32 MiB on a CPU, 512 MiB on a GPU."""
    return max(1, (CPU_CHUNK_BYTES if device.type == "cpu" else GPU_CHUNK_BYTES) // (4 * vocab_size))


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    with_entropy: bool = False,
) -> TokenLogprobs:
    """Log-probs of `targets` under softmax(hidden @ weight.T / temperature), with gradients for `hidden` and `weight`.

    hidden [N, H] of the compute dtype; weight [V, H], rounded to that dtype for the products, while its gradient is
    accumulated in float32 or wider and returned in its own dtype; targets [N] int64. Log-softmax and entropy are
    float32, float64 where `hidden` is. Logits of at most `chunk_size` tokens (None: `default_chunk_size`) exist at any
    time, forward and backward.
    """
    chunk = default_chunk_size(weight.shape[0], weight.device) if chunk_size is None else chunk_size
    values = _TokenLogprobs.apply(hidden, weight, targets, temperature, chunk, with_entropy)  # type: ignore[no-untyped-call]
    return TokenLogprobs(*values)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (nor does it take a mapping)
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        chunk: int,
        with_entropy: bool,  # noqa: FBT001 (`apply` takes no keywords)
    ) -> tuple[Tensor, Tensor | None]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        rounded = weight.to(hidden.dtype)
        count = hidden.shape[0]
        logprobs = torch.empty(count, dtype=wide, device=hidden.device)
        normaliser = torch.empty_like(logprobs)  # log of the sum of exponentials
        entropy = torch.empty_like(logprobs) if with_entropy else None
        log_p: Tensor | None = None
        for start in range(0, count, chunk):
            rows = slice(start, start + chunk)
            logits = _logits(hidden[rows], rounded, temperature, wide)
            log_p = torch.log_softmax(logits, dim=-1)
            torch.gather(log_p, 1, targets[rows, None], out=logprobs[rows, None])
            normaliser[rows] = logits.gather(1, targets[rows, None])[:, 0] - logprobs[rows]
            if entropy is not None:
                entropy[rows] = entropy_of(log_p)
        kept = log_p if count <= chunk and (hidden.requires_grad or weight.requires_grad) else None
        ctx.save_for_backward(hidden, weight, targets, logprobs, normaliser, entropy, kept)
        ctx.temperature, ctx.chunk = temperature, chunk
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_logprobs, grad_entropy = grads
        hidden, weight, targets, logprobs, normaliser, entropy, kept = ctx.saved_tensors
        wide = torch.promote_types(hidden.dtype, torch.float32)
        rounded = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device) if ctx.needs_input_grad[1] else None
        for start in range(0, hidden.shape[0], ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            log_p = kept
            if log_p is None:
                log_p = _logits(hidden[rows], rounded, ctx.temperature, wide).sub_(normaliser[rows, None])
            if grad_entropy is None:
                # The gradient of the logits is the probabilities less one at the target, each row scaled: the rows of
                # hidden size are scaled in its place.
                less = _probabilities_less_target(
                    log_p, logprobs[rows], targets[rows], hidden.dtype, keep=kept is not None
                )
                assert grad_logprobs is not None, "autograd makes a missing gradient 0"
                scale = grad_logprobs[rows, None] / -ctx.temperature
                if grad_weight is not None:
                    add_weight_grad(grad_weight, less, (hidden[rows] * scale).to(hidden.dtype))
                if grad_hidden is not None:
                    grad_hidden[rows] = _product(less, rounded, wide) * scale
                continue
            grad = grad_logits(
                log_p,
                targets[rows],
                None if grad_logprobs is None else grad_logprobs[rows] / ctx.temperature,
                None if grad_entropy is None else grad_entropy[rows] / ctx.temperature,
                None if entropy is None else entropy[rows],
            )
            del log_p
            if grad_weight is not None:
                add_weight_grad(grad_weight, grad, hidden[rows])
            if grad_hidden is not None:
                torch.mm(grad.to(hidden.dtype), rounded, out=grad_hidden[rows])
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    logits = _product(hidden, weight.T, dtype)
    return logits if temperature == 1.0 else logits.div_(temperature)


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """The product in `dtype`; on a GPU without rounding its float32 sums to the dtype of the factors."""
    if left.is_cuda and left.dtype != dtype:
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)


def _probabilities_less_target(
    log_p: Tensor, logprobs: Tensor, targets: Tensor, dtype: torch.dtype, *, keep: bool
) -> Tensor:
    """[N, V] in `dtype`: p less 1 at the target, whose value is exact however near 1 its probability is.

    Without `keep`, `log_p` may be overwritten.
    """
    out = log_p if log_p.dtype == dtype and not keep else torch.empty_like(log_p, dtype=dtype)
    torch.exp(log_p, out=out)
    return out.scatter_(1, targets[:, None], torch.expm1(logprobs)[:, None].to(dtype))


def entropy_of(log_p: Tensor) -> Tensor:
    """[N]: -sum p log p of [N, V] log-probs."""
    entropy: Tensor = torch.linalg.vecdot(log_p.exp(), log_p)
    return entropy.neg()


def grad_logits(
    log_p: Tensor,
    targets: Tensor,
    grad_logprobs: Tensor | None,
    grad_entropy: Tensor | None,
    entropy: Tensor | None,
    *,
    own: Tensor | None = None,
) -> Tensor:
    """[N, V]: grad_logprobs (onehot - p) - grad_entropy p (log p + entropy).

    `own` [N] bool: where false, the token is not among these V and the onehot is 0.
    """
    grad = log_p.exp()
    if grad_entropy is not None and entropy is not None:
        # p * (-(g_l + g_e entropy) - g_e log p)
        constant = grad_entropy * entropy
        if grad_logprobs is not None:
            constant = constant + grad_logprobs
        grad.mul_(torch.addcmul(constant[:, None], log_p, grad_entropy[:, None]).neg_())
    elif grad_logprobs is not None:
        grad.mul_(grad_logprobs[:, None].neg())
    else:
        return grad.zero_()
    if grad_logprobs is not None:
        chosen = grad_logprobs if own is None else grad_logprobs.where(own, 0)
        grad.scatter_add_(1, targets[:, None], chosen[:, None])
    return grad


def add_weight_grad(total: Tensor, grad: Tensor, hidden: Tensor) -> None:
    """Add grad.T @ hidden, in the dtype of `total`."""
    if hidden.dtype == total.dtype:
        total.addmm_(grad.T, hidden)
    elif hidden.is_cuda:
        torch.addmm(total, grad.to(hidden.dtype).T, hidden, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(grad.T.to(total.dtype), hidden.to(total.dtype))
