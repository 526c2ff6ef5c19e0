"""Log-probs of chosen tokens where each rank holds some rows of the output weight.

The log-softmax over the whole vocabulary is made of four numbers a token and rank (largest logit, sum of exponentials,
the chosen token's logit, and the entropy's sum), so one all-gather of [4, N] does for the forward pass and the backward
pass needs none. Logits exist for a chunk of tokens and the local rows only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from grpo.workers.policy.token_logprobs import TokenLogprobs, default_chunk_size


def vocab_parallel_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    first_token: int = 0,
    group: dist.ProcessGroup | None = None,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    with_entropy: bool = False,
) -> TokenLogprobs:
    """Log-probs of `targets` under softmax(hidden @ W.T / temperature), W being the ranks' `weight` one below another.

    hidden [N, H] of the compute dtype, the same on every rank of `group`; weight [V_local, H]: the rows of tokens
    `first_token` onwards; targets [N] int64 in the whole vocabulary. Results are float32, float64 where `hidden` is,
    and the same on every rank. `group` None: this rank has every row.

    The gradient of `weight` is complete. That of `hidden` is this rank's part: the sum over the group is the gradient,
    which is what the backward pass of Megatron's copy and gather regions, or a DTensor of partial placement, makes of
    it. At most `chunk_size` x V_local logits exist at any time (None: `default_chunk_size`).
    """
    chunk = default_chunk_size(weight.shape[0], weight.device) if chunk_size is None else chunk_size
    local = targets - first_token
    values = _VocabParallel.apply(hidden, weight, local, temperature, chunk, with_entropy, group)  # type: ignore[no-untyped-call]
    return TokenLogprobs(*values)


class _VocabParallel(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (`apply` takes no keywords)
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        chunk: int,
        with_entropy: bool,  # noqa: FBT001
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor | None]:
        rounded = weight.to(hidden.dtype)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        parts = torch.empty(4, hidden.shape[0], dtype=wide, device=hidden.device)
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            _statistics(_logits(hidden[rows], rounded, temperature, wide), targets[rows], parts[:, rows], with_entropy)
        log_z, chosen, entropy = _combined(_gathered(parts, group), with_entropy)
        ctx.save_for_backward(hidden, weight, targets, log_z, entropy)
        ctx.temperature, ctx.chunk = temperature, chunk
        return chosen - log_z, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, log_z, entropy = ctx.saved_tensors
        rounded = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros(weight.shape, dtype=log_z.dtype, device=weight.device)
        scaled = [None if each is None else each / ctx.temperature for each in grads]
        for start in range(0, hidden.shape[0], ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            log_p = _logits(hidden[rows], rounded, ctx.temperature, log_z.dtype).sub_(log_z[rows, None])
            grad = _grad_logits(log_p, targets[rows], *(_at(each, rows) for each in (*scaled, entropy)))
            del log_p
            narrow = grad.to(hidden.dtype)
            del grad
            _add_product(grad_weight, narrow, hidden[rows])
            if grad_hidden is not None:
                torch.mm(narrow, rounded, out=grad_hidden[rows])
        wanted = grad_weight.to(weight.dtype) if ctx.needs_input_grad[1] else None
        return grad_hidden, wanted, None, None, None, None, None


def _at(values: Tensor | None, rows: slice) -> Tensor | None:
    return None if values is None else values[rows]


def _logits(hidden: Tensor, weight: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    logits = (hidden @ weight.T).to(dtype)
    return logits if temperature == 1.0 else logits.div_(temperature)


def _here(targets: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Which targets are among the local rows, and an index that is valid for all."""
    return (targets >= 0) & (targets < count), targets.clamp(0, count - 1)


def _statistics(logits: Tensor, targets: Tensor, out: Tensor, with_entropy: bool) -> None:  # noqa: FBT001
    """Into `out` [4, n]: largest logit m, sum of e = exp(z - m), the chosen logit (0 elsewhere), sum of e (z - m)."""
    here, index = _here(targets, logits.shape[1])
    out[2] = logits.gather(1, index[:, None])[:, 0].masked_fill_(~here, 0.0)
    torch.amax(logits, 1, out=out[0])
    logits.sub_(out[0][:, None])
    exponentials = logits.exp()
    torch.sum(exponentials, 1, out=out[1])
    out[3] = torch.linalg.vecdot(exponentials, logits) if with_entropy else 0.0


def _gathered(parts: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """[ranks, 4, N]."""
    if group is None or group.size() == 1:
        return parts[None]
    every = [torch.empty_like(parts) for _ in range(group.size())]
    dist.all_gather(every, parts, group=group)
    return torch.stack(every)


def _combined(parts: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor | None]:  # noqa: FBT001
    """From every rank's [4, N] to log of the partition sum, chosen logit and entropy, each [N]."""
    largest, sums, chosen, products = parts.unbind(1)
    top = largest.amax(0)
    shift = largest - top
    scale = shift.exp()
    total = (sums * scale).sum(0)
    entropy = None
    if with_entropy:  # log Z - sum p z, both relative to the largest logit
        entropy = total.log() - ((products + sums * shift) * scale).sum(0) / total
    return top + total.log(), chosen.sum(0), entropy


def _grad_logits(
    log_p: Tensor, targets: Tensor, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, entropy: Tensor | None
) -> Tensor:
    """[n, V_local]: grad_logprobs (onehot - p) - grad_entropy p (log p + entropy)."""
    grad = log_p.exp()
    if grad_entropy is not None and entropy is not None:
        constant = grad_entropy * entropy
        if grad_logprobs is not None:
            constant = constant + grad_logprobs
        grad.mul_(torch.addcmul(constant[:, None], log_p, grad_entropy[:, None]).neg_())
    elif grad_logprobs is not None:
        grad.mul_(grad_logprobs[:, None].neg())
    else:
        return grad.zero_()
    if grad_logprobs is not None:
        here, index = _here(targets, grad.shape[1])
        grad.scatter_add_(1, index[:, None], (grad_logprobs * here)[:, None])
    return grad


def _add_product(total: Tensor, grad_logits: Tensor, hidden: Tensor) -> None:
    if hidden.dtype == total.dtype:
        total.addmm_(grad_logits.T, hidden)
    elif hidden.is_cuda:
        torch.addmm(total, grad_logits.T, hidden, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(grad_logits.T.to(total.dtype), hidden.to(total.dtype))
