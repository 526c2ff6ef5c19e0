"""Which sequences each data-parallel rank trains."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balanced_shards(work: Sequence[float], count: int) -> list[list[int]]:
    """Indices of the items of each of `count` shards, ascending, every item once, with nearly equal sums of `work`.

    Longest processing time first (Graham 1969): the largest sum is at most 4/3 of the optimum. The same input gives the
    same shards on every rank. Shards may be empty where there are fewer items.
    """
    heap = [(0.0, 0, shard) for shard in range(count)]
    shards: list[list[int]] = [[] for _ in range(count)]
    for item in sorted(range(len(work)), key=lambda index: (-work[index], index)):
        total, held, shard = heap[0]
        shards[shard].append(item)
        heapq.heapreplace(heap, (total + work[item], held + 1, shard))
    return [sorted(each) for each in shards]
