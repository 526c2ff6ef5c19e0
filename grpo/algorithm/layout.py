"""Which sequence each token of a flat token dimension belongs to, and sums over sequences.

Sums are deterministic and differentiable, and wait for no device. `index_add` adds in order on a CPU but with atomic
adds on CUDA, and `index_put` the other way round (on CUDA it sorts), so each device gets the reproducible one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenLayout:
    """T tokens of b whole sequences, in any order."""

    mask: Tensor  # [T] bool, true on trained tokens
    sequence_ids: Tensor  # [T] int64 in [0, b)
    num_sequences: int  # b

    @functools.cached_property
    def sequence_tokens(self) -> Tensor:
        """[b] float64: trained tokens of each sequence."""
        return self.sum(self.mask.to(torch.float64))

    def sum(self, values: Tensor) -> Tensor:
        """Sum `values` [T] over all tokens of each sequence, trained or not: [b] of the same dtype."""
        totals = values.new_zeros(self.num_sequences)
        if values.is_cuda:
            return totals.index_put((self.sequence_ids,), values, accumulate=True)
        return totals.index_add(0, self.sequence_ids, values)

    def mean(self, values: Tensor) -> Tensor:
        """Mean over trained tokens [b] of `values` [T] that are 0 on the others; 0 for a sequence without one."""
        return self.sum(values) / self.sequence_tokens.clamp(min=1).to(values.dtype)

    def spread(self, values: Tensor) -> Tensor:
        """Give each token the value of its sequence: [b] -> [T]. Its gradient is a `sum`, reproducible alike."""
        return values[self.sequence_ids] if values.is_cuda else values.index_select(0, self.sequence_ids)
