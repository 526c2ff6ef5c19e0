"""Sums over the sequences of a flat token dimension: deterministic, differentiable, without a host sync."""

from torch import Tensor


def segment_sum(values: Tensor, sequence_ids: Tensor, num_sequences: int) -> Tensor:
    """Sum `values` [T] over the tokens of each sequence; the ids [T] int64 need not be sorted.

    Returns [b] in the dtype of `values`. `index_add` runs in order on a CPU but with atomic adds on CUDA, and
    `index_put` the other way round (it sorts on CUDA): each device gets the one whose result is reproducible.
    """
    totals = values.new_zeros(num_sequences)
    if values.is_cuda:
        return totals.index_put((sequence_ids,), values, accumulate=True)
    return totals.index_add(0, sequence_ids, values)


def spread(values: Tensor, sequence_ids: Tensor) -> Tensor:
    """Give each token the value of its sequence: [b] -> [T]. Its gradient is a `segment_sum`, reproducible alike."""
    return values[sequence_ids] if values.is_cuda else values.index_select(0, sequence_ids)
