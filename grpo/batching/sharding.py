"""Which data parallel rank computes which sequences, and in how many forward passes.

Ranks of a data parallel group gather parameters and reduce gradients together, layer by layer: one that ran fewer
micro-batches than the others would leave them waiting. So all run as many, with dummies where sequences run out.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from grpo.batching.micro_batches import MicroBatch, Planning, plan_micro_batches


def split_by_work(work: Sequence[float], ranks: int) -> list[list[int]]:
    """Items of each rank, in ascending order: the largest first, each to the rank with the least work so far.

    At most 4/3 - 1/(3 ranks) of the best possible maximum (Graham 1969). Same input, same split.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    heap = [(0.0, 0, rank) for rank in range(ranks)]
    for item in sorted(range(len(work)), key=lambda each: (-work[each], each)):
        total, count, rank = heap[0]
        shares[rank].append(item)
        heapq.heapreplace(heap, (total + work[item], count + 1, rank))
    return [sorted(share) for share in shares]


def plan_ranks(lengths: Sequence[int], work: Sequence[float], planning: Planning, ranks: int) -> list[list[MicroBatch]]:
    """The micro-batches of every rank: as many on each, every sequence on one, work about equal.

    Args:
        lengths: tokens of each sequence.
        work: cost of each sequence in any unit, for instance `sequence_work`.
        planning: how a rank cuts its sequences.
        ranks: 1 or more.

    Raises:
        ValueError: a sequence alone is above the cap of `planning`.
    """
    shares = split_by_work(work, ranks)
    plans = [plan_micro_batches([lengths[row] for row in share], planning) for share in shares]
    count = max(len(plan) for plan in plans)
    result = []
    for share, plan in zip(shares, plans, strict=True):
        if len(plan) < count and share:  # smaller micro-batches before dummies
            own = [lengths[row] for row in share]
            plan = plan_micro_batches(own, planning, min_count=min(count, len(share)))  # noqa: PLW2901
        renamed = [MicroBatch([share[i] for i in each.rows], each.width, each.computed_tokens) for each in plan]
        result.append(renamed + [dummy(planning.round_to)] * (count - len(plan)))
    return result


def dummy(round_to: int) -> MicroBatch:
    """One row of padding, of the least width that the layout allows."""
    return MicroBatch([], round_to, round_to)


def sequence_work(length: int, *, parameters: int, attention_width: int) -> float:
    """FLOPs of a forward pass over one sequence: 2 a parameter and token, and its causal attention.

    Args:
        length: tokens.
        parameters: of all matrices that every token passes, the output weight included.
        attention_width: layers x heads x head size; each token's products with half of the others, twice, are
            2 x length x attention_width FLOPs.
    """
    return 2.0 * length * (parameters + attention_width * length)
