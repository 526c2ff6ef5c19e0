"""Sequences of different lengths without padding: what workers are given and give back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B sequences (prompt and completion) laid end to end; T is the sum of their lengths.

    A per-token value at a position belongs to the token there: its log-prob given the tokens before it. The first token
    of a sequence has no log-prob, so its mask is always false. Values where the mask is false are never read.
    """

    tokens: Tensor  # [T] int64
    lengths: Tensor  # [B] int64
    mask: Tensor  # [T] bool, true on trained tokens
    generation_logprobs: Tensor  # [T] float32, as the engine reported them
    advantages: Tensor | None = None  # [B] float32
    old_logprobs: Tensor | None = None  # [T] float32, of the trainer before the update
    reference_logprobs: Tensor | None = None  # [T] float32

    def __post_init__(self) -> None:
        total = self.tokens.numel()
        assert int(self.lengths.sum()) == total, (self.lengths, total)
        for name in ("mask", "generation_logprobs", "old_logprobs", "reference_logprobs"):
            value = getattr(self, name)
            assert value is None or value.shape == (total,), (name, value.shape, total)
        assert self.advantages is None or self.advantages.shape == self.lengths.shape

    def __len__(self) -> int:
        return self.lengths.numel()

    @property
    def starts(self) -> Tensor:
        """[B] int64: where each sequence begins in the token dimension."""
        return self.lengths.cumsum(0) - self.lengths

    @property
    def sequence_ids(self) -> Tensor:
        """[T] int64: the sequence that each token belongs to."""
        return torch.repeat_interleave(torch.arange(len(self), device=self.lengths.device), self.lengths)

    def token_indices(self, rows: Sequence[int]) -> Tensor:
        """[sum of the rows' lengths] int64: positions of these sequences' tokens, in the order of `rows`."""
        starts, lengths = self.starts.tolist(), self.lengths.tolist()
        return torch.cat([torch.arange(starts[row], starts[row] + lengths[row]) for row in rows])

    def select(self, rows: Sequence[int]) -> Batch:
        """The sequences of `rows`, in that order, as a batch of their own."""
        tokens, index = self.token_indices(rows), torch.as_tensor(rows)
        chosen = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                chosen[field.name] = value[index if field.name in ("lengths", "advantages") else tokens]
        return Batch(**chosen)

    def with_values(self, **values: Tensor | None) -> Batch:
        """A copy with some of its fields replaced."""
        return replace(self, **values)  # type: ignore[arg-type]
