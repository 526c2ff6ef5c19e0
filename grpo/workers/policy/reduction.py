"""Sums over data parallel ranks. Tensor parallel ranks hold copies, which are counted once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from grpo.algorithm.metrics import MetricSums


def reduce_metrics(own: MetricSums, places: Sequence[int], size: int, group: dist.ProcessGroup) -> MetricSums:
    """The metrics of all ranks of `group`, on each of them, in two messages.

    Args:
        own: of this rank's micro-batches. All ranks have the same names.
        places: for each of its per-sequence values the sequence's place among all of them, -1 for a dummy's.
        size: sequences on all ranks.
        group: ranks with different sequences.
    """
    device = next(iter(own.sums.values())).device
    kept = torch.as_tensor(places, device=device)
    spread = torch.zeros((len(own.sequence_values), size + 1), dtype=torch.float64, device=device)
    for row, values in zip(spread, own.sequence_values.values(), strict=True):
        row[kept] = values.double()  # a dummy's land at the end
    totals = torch.cat([torch.stack([each.double() for each in own.sums.values()]), spread[:, :size].flatten()])
    dist.all_reduce(totals, group=group)
    sums, values = totals[: len(own.sums)], totals[len(own.sums) :].view(len(spread), size)
    extremes = [each.double() for each in own.maxima.values()] + [-each.double() for each in own.minima.values()]
    largest = torch.stack(extremes)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    return MetricSums(
        dict(zip(own.sums, sums, strict=True)),
        dict(zip(own.maxima, largest, strict=False)),
        dict(zip(own.minima, -largest[len(own.maxima) :], strict=True)),
        dict(zip(own.sequence_values, values, strict=True)),
    )


def sum_tokens(values: Tensor, device: torch.device, group: dist.ProcessGroup) -> Tensor:
    """[T] on the CPU: each token's value from the rank that has it; the others hold 0 there."""
    total = values.to(device)
    dist.all_reduce(total, group=group)
    return total.cpu()
