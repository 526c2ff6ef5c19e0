"""Log-probs of chosen tokens from hidden states, without logits for all tokens at once.

log_softmax(hidden @ weight.T / temperature) at the chosen token, and the exact entropy of that distribution. Tokens are
taken in chunks; the backward pass makes a chunk's logits again. A call that fits one chunk keeps its log-softmax, which
is what dense code would keep, and makes nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from grpo.kernels.logits import is_normalised, logit_gradients, logit_statistics
from grpo.kernels.products import added_product, product
from grpo.kernels.statistics import Statistics

# Float32 logits that exist at once where `policy.logprob_chunk_size` is null. On a CPU about what its caches hold; on a
# GPU enough tokens that adding each chunk to a gradient as large as the output weight costs little beside the products.
CPU_CHUNK_BYTES, GPU_CHUNK_BYTES = 32 << 20, 512 << 20
GPU_ROWS = 128  # of logits that a GPU's matrix product makes together


class WideGradient(Protocol):
    """A gradient of a weight in a dtype wider than the weight's, which products are added into as they are made."""

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Add left.T @ right; left [N, rows], right [N, columns] in the compute dtype."""
        ...

    def for_autograd(self) -> Tensor | None:
        """What autograd is told once all products of a backward pass are added; None: nothing."""
        ...


class TokenLogprobs(NamedTuple):
    logprobs: Tensor  # [N] float32
    entropy: Tensor | None  # [N] float32


def default_chunk_size(vocab_size: int, device: torch.device) -> int:
    """Tokens whose float32 logits take about 32 MiB on a CPU, 512 MiB on a GPU."""
    tokens = (CPU_CHUNK_BYTES if device.type == "cpu" else GPU_CHUNK_BYTES) // (4 * vocab_size)
    return max(1, tokens if device.type == "cpu" or tokens < GPU_ROWS else tokens // GPU_ROWS * GPU_ROWS)


def chunk_sizes(count: int, most: int, device: torch.device) -> list[int]:
    """`count` tokens in as few chunks of at most `most` as there can be, and of about one size."""
    chunks = max(1, -(-count // most))
    each = -(-count // chunks)
    if device.type != "cpu":
        each = min(most, -(-each // GPU_ROWS) * GPU_ROWS)
    return [min(each, count - start) for start in range(0, count, each)] if count else [0]


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    with_entropy: bool = False,
    gradient: WideGradient | None = None,
) -> TokenLogprobs:
    """Log-probs of `targets` under softmax(hidden @ weight.T / temperature), with gradients for `hidden` and `weight`.

    hidden [N, H] of the compute dtype; weight [V, H], rounded to that dtype for the products, while its gradient is
    accumulated in float32 or wider and returned in its own dtype; with `gradient` it is added there instead. targets
    [N] int64. Log-softmax and entropy are float32, float64 where `hidden` is. Logits of at most `chunk_size` tokens
    (None: `default_chunk_size`) exist at any time, forward and backward.
    """
    return logprobs_of_rows(
        hidden, weight, targets, OneProcess(), gradient,
        temperature=temperature, chunk_size=chunk_size, with_entropy=with_entropy,
    )  # fmt: skip


def logprobs_of_rows(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    share: VocabularyShare,
    gradient: WideGradient | None,
    *,
    temperature: float,
    chunk_size: int | None,
    with_entropy: bool,
) -> TokenLogprobs:
    """`token_logprobs` where `weight` is this rank's share of the output weight's rows."""
    chunk = default_chunk_size(weight.shape[0], weight.device) if chunk_size is None else chunk_size
    pieces = Pieces(chunk_sizes(len(hidden), chunk, hidden.device), temperature, gradient)
    own_targets = targets - share.first_row if share.first_row else targets
    values = _TokenLogprobs.apply(hidden, weight, own_targets, pieces, share, with_entropy)  # type: ignore[no-untyped-call]
    return TokenLogprobs(*values)


class VocabularyShare(Protocol):
    """Which rows of the output weight a rank has, and how ranks make the whole distribution of theirs."""

    @property
    def first_row(self) -> int: ...

    def whole(self, own: Statistics) -> Statistics:
        """Over the rows of all ranks, from those over a rank's own rows."""
        ...

    def total(self, of_hidden: Tensor) -> None:
        """Sum the gradient of the hidden states over the ranks, in place."""
        ...


class OneProcess:
    """All rows are here."""

    first_row = 0

    def whole(self, own: Statistics) -> Statistics:
        return own

    def total(self, of_hidden: Tensor) -> None: ...


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (nor does it take a mapping)
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        pieces: Pieces,
        share: VocabularyShare,
        with_entropy: bool,  # noqa: FBT001 (`apply` takes no keywords)
    ) -> tuple[Tensor, Tensor | None]:
        own, kept = pieces.statistics(
            hidden, weight, targets, with_entropy=with_entropy, keep=hidden.requires_grad or weight.requires_grad
        )
        whole = share.whole(own)
        if kept is not None and is_normalised(kept) and whole is not own:
            kept.add_((own.normaliser - whole.normaliser)[:, None])
        ctx.pieces, ctx.share = pieces, share
        ctx.save_for_backward(hidden, weight, targets, *whole, kept)
        return whole.logprobs, whole.entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, logprobs, normaliser, entropy, kept = ctx.saved_tensors
        whole = Statistics(logprobs, normaliser, entropy)
        of_hidden, of_weight = ctx.pieces.gradients(
            hidden, weight, targets, whole=whole, kept=kept, grads=grads, needed=ctx.needs_input_grad[:2]
        )
        if of_hidden is not None:
            ctx.share.total(of_hidden)
        return of_hidden, of_weight, None, None, None, None


class Pieces(NamedTuple):
    """Tokens taken in chunks over some rows of the output weight: all, or those of one rank."""

    sizes: list[int]
    temperature: float
    gradient: WideGradient | None  # of the weight, where it is not to be returned

    def statistics(
        self, hidden: Tensor, weight: Tensor, targets: Tensor, *, with_entropy: bool, keep: bool
    ) -> tuple[Statistics, Tensor | None]:
        """Over these rows alone, and with `keep` what one chunk leaves for the backward pass."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        rounded = weight.to(hidden.dtype)
        found, rest = [], None
        for rows, chosen in zip(torch.split(hidden, self.sizes), torch.split(targets, self.sizes), strict=True):
            rest = None  # before the next one is made
            logits = product(rows, rounded.T, wide)
            each, rest = logit_statistics(logits, chosen, temperature=self.temperature, with_entropy=with_entropy)
            del logits
            found.append(each)
        joined = Statistics(
            torch.cat([each.logprobs for each in found]),
            torch.cat([each.normaliser for each in found]),
            torch.cat([each.entropy for each in found if each.entropy is not None]) if with_entropy else None,
        )
        return joined, rest if keep and len(self.sizes) == 1 else None

    def gradients(
        self,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        *,
        whole: Statistics,
        kept: Tensor | None,
        grads: Sequence[Tensor | None],
        needed: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None]:
        """Of `hidden` and `weight`; `grads` are those of the log-probs and of the entropy."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        rounded = weight.to(hidden.dtype)
        of_hidden = torch.empty_like(hidden) if needed[0] else None
        of_weight = torch.zeros(weight.shape, dtype=wide, device=weight.device) if self._returned(needed) else None
        stop = 0
        for size in self.sizes:
            start, stop = stop, stop + size
            cut = slice(start, stop)
            logits = product(hidden[cut], rounded.T, wide) if kept is None else kept
            grad = logit_gradients(
                logits,
                Statistics(*(None if each is None else each[cut] for each in whole)),  # type: ignore[arg-type]
                targets[cut],
                temperature=self.temperature,
                grad_logprobs=None if grads[0] is None else grads[0][cut],
                grad_entropy=None if grads[1] is None else grads[1][cut],
                normalised=kept is not None and is_normalised(kept),
                dtype=hidden.dtype,
            )
            del logits
            if of_weight is not None:
                added_product(of_weight, grad, hidden[cut], wide)
            elif needed[1] and self.gradient is not None:
                self.gradient.add_product(grad, hidden[cut])
            if of_hidden is not None:
                torch.mm(grad, rounded, out=of_hidden[cut])
        if self.gradient is not None:
            return of_hidden, self.gradient.for_autograd() if needed[1] else None
        return of_hidden, None if of_weight is None else of_weight.to(weight.dtype)

    def _returned(self, needed: Sequence[bool]) -> bool:
        return needed[1] and self.gradient is None
