"""Log-softmax statistics of float32 logits in one reading, and their gradient in one more."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grpo.kernels.statistics import Statistics, at_target

BLOCK = 4096
LOWEST = tl.constexpr(-1e38)  # finite, so that what has seen no logit is no NaN


@triton.jit
def _statistics(
    x_ptr, target_ptr, logprob_ptr, normaliser_ptr, entropy_ptr, stride, width, temperature,
    ENTROPY: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * stride
    # Each lane's own greatest logit, sum of exponentials and sum of exponentials times logits; joined at the end.
    greatest = tl.full((SIZE,), LOWEST, tl.float32)
    total = tl.zeros((SIZE,), tl.float32)
    weighted = tl.zeros((SIZE,), tl.float32)
    for start in range(0, width, SIZE):
        column = start + tl.arange(0, SIZE)
        inside = column < width
        x = tl.where(inside, tl.load(x_row + column, mask=inside, other=0.0) / temperature, LOWEST)
        new = tl.maximum(greatest, x)
        shrink, own = tl.exp(greatest - new), tl.exp(x - new)
        if ENTROPY:
            weighted = (weighted + total * (greatest - new)) * shrink + own * (x - new)
        total = total * shrink + own
        greatest = new
    top = tl.max(greatest, 0)
    shrink = tl.exp(greatest - top)
    whole = tl.sum(total * shrink, 0)
    log_whole = tl.log(whole)
    if ENTROPY:
        mean = tl.sum((weighted + total * (greatest - top)) * shrink, 0) / whole
        tl.store(entropy_ptr + row, log_whole - mean)
    target = tl.load(target_ptr + row)
    own_target = (target >= 0) & (target < width)
    chosen = tl.load(x_row + target, mask=own_target, other=0.0) / temperature
    tl.store(logprob_ptr + row, tl.where(own_target, (chosen - top) - log_whole, float("-inf")))
    tl.store(normaliser_ptr + row, top + log_whole)


@triton.jit
def _gradients(
    x_ptr, normaliser_ptr, target_ptr, scale_ptr, at_target_ptr, entropy_scale_ptr, entropy_ptr, out_ptr,
    x_stride, out_stride, width, temperature, LOGPROBS: tl.constexpr, ENTROPY: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = column < width
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
    log_p = x / temperature - tl.load(normaliser_ptr + row)
    p = tl.exp(log_p)
    grad = tl.zeros((SIZE,), tl.float32)
    if LOGPROBS:
        at_target = column == tl.load(target_ptr + row)
        grad = tl.where(at_target, tl.load(at_target_ptr + row), -tl.load(scale_ptr + row) * p)
    if ENTROPY:
        grad -= tl.load(entropy_scale_ptr + row) * p * (log_p + tl.load(entropy_ptr + row))
    tl.store(out_ptr + row * out_stride + column, grad.to(out_ptr.dtype.element_ty), mask=inside)


def statistics(
    logits: Tensor, targets: Tensor, temperature: float, *, with_entropy: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-probs of the targets, normalisers and entropies; see `grpo.kernels.logits.logit_statistics`."""
    rows, width = logits.shape
    assert logits.dtype == torch.float32, "float32 logits"
    assert logits.stride(1) == targets.stride(0) == 1, "side by side"
    logprobs, normaliser, entropy = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(3))
    if rows:
        size = min(BLOCK, triton.next_power_of_2(width))
        _statistics[(rows,)](
            logits, targets, logprobs, normaliser, entropy, logits.stride(0), width, temperature,
            ENTROPY=with_entropy, SIZE=size, num_warps=8,
        )  # fmt: skip
    return logprobs, normaliser, entropy if with_entropy else None


def gradients(
    logits: Tensor,
    whole: Statistics,
    targets: Tensor,
    temperature: float,
    grad_logprobs: Tensor | None,
    grad_entropy: Tensor | None,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of the logits; see `grpo.kernels.logits.logit_gradients`. The gradients are over T already."""
    rows, width = logits.shape
    out = torch.empty((rows, width), dtype=dtype, device=logits.device)
    chosen = None if grad_logprobs is None else at_target(whole, grad_logprobs).contiguous()
    scale, entropy_scale = (None if each is None else each.contiguous() for each in (grad_logprobs, grad_entropy))
    if rows:
        size = min(BLOCK, triton.next_power_of_2(width))
        _gradients[(rows, triton.cdiv(width, size))](
            logits, whole.normaliser, targets, scale, chosen, entropy_scale, whole.entropy, out, logits.stride(0),
            out.stride(0), width, temperature, LOGPROBS=grad_logprobs is not None, ENTROPY=grad_entropy is not None,
            SIZE=size, num_warps=8,
        )  # fmt: skip
    return out
