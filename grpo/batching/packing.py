"""Bin packing of sequences by length under a hard cap: every item once, no bin above the cap."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Literal

PackingAlgorithm = Literal["first_fit_decreasing", "modified_first_fit_decreasing", "balanced"]
Bins = list[list[int]]


def pack(lengths: Sequence[int], capacity: int, algorithm: PackingAlgorithm) -> Bins:
    """Indices of the items in each bin. The same input gives the same bins.

    Raises ValueError naming the item if one alone is above `capacity`, or if a length is below 1.
    """
    for item, length in enumerate(lengths):
        if length < 1:
            raise ValueError(f"sequence {item} has {length} tokens; at least 1 is needed")
        if length > capacity:
            raise ValueError(f"sequence {item} has {length} tokens, above the cap of {capacity} tokens a micro-batch")
    return _ALGORITHMS[algorithm](lengths, capacity)


def _descending(lengths: Sequence[int], items: Sequence[int] | None = None) -> list[int]:
    return sorted(range(len(lengths)) if items is None else items, key=lambda item: (-lengths[item], item))


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    """Longest first, each into the first bin with room (Johnson 1973): at most 11/9 of the optimum + 6/9."""
    bins: Bins = []
    free: list[int] = []
    _first_fit(_descending(lengths), lengths, capacity, bins, free)
    return bins


def modified_first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    """Fills the bins of large items first (Johnson and Garey 1985): at most 71/60 of the optimum + 1.

    An item of over half a bin opens one. Fullest first, each such bin takes the largest medium item (over a third)
    that fits; then, emptiest first, those without one take two small items (over a sixth). First fit decreasing does
    the rest.
    """
    order = _descending(lengths)
    large = [item for item in order if 2 * lengths[item] > capacity]
    small = [item for item in order if 6 * lengths[item] > capacity and 3 * lengths[item] <= capacity]
    bins: Bins = [[item] for item in large]
    free = [capacity - lengths[item] for item in large]
    medium = [item for item in order if 2 * lengths[item] <= capacity and 3 * lengths[item] > capacity]
    for index, room in enumerate(free):  # a medium item has the first right to a bin, fullest bins first
        fitting = next((item for item in medium if lengths[item] <= room), None)
        if fitting is not None:
            medium.remove(fitting)
            bins[index].append(fitting)
            free[index] -= lengths[fitting]
    for index in reversed(range(len(bins))):
        if len(bins[index]) > 1 or len(small) < 2 or lengths[small[-1]] + lengths[small[-2]] > free[index]:
            continue
        smallest = small.pop()
        partner = next(item for item in small if lengths[item] + lengths[smallest] <= free[index])
        small.remove(partner)
        bins[index] += [partner, smallest]
        free[index] -= lengths[partner] + lengths[smallest]
    placed = {item for each in bins for item in each}
    _first_fit([item for item in order if item not in placed], lengths, capacity, bins, free)
    return bins


def balanced(lengths: Sequence[int], capacity: int) -> Bins:
    """Bins of nearly equal sums: longest processing time first (Graham 1969) into the fewest bins that keep the cap.

    The number of bins starts at the total over the cap, rounded up. Where even as many bins as first fit decreasing
    needs break the cap, that packing is returned.
    """
    packed = first_fit_decreasing(lengths, capacity)
    order = _descending(lengths)
    for count in range(-(-sum(lengths) // capacity), len(packed) + 1):
        bins = _longest_first(order, lengths, count)
        if all(sum(lengths[item] for item in each) <= capacity for each in bins):
            return bins
    return packed


def _longest_first(order: Sequence[int], lengths: Sequence[int], count: int) -> Bins:
    bins: Bins = [[] for _ in range(count)]
    heap = [(0, index) for index in range(count)]
    for item in order:
        total, index = heap[0]
        bins[index].append(item)
        heapq.heapreplace(heap, (total + lengths[item], index))
    return [each for each in bins if each]


def _first_fit(items: Sequence[int], lengths: Sequence[int], capacity: int, bins: Bins, free: list[int]) -> None:
    for item in items:
        for index, room in enumerate(free):
            if lengths[item] <= room:
                bins[index].append(item)
                free[index] -= lengths[item]
                break
        else:
            bins.append([item])
            free.append(capacity - lengths[item])


_ALGORITHMS: dict[PackingAlgorithm, Callable[[Sequence[int], int], Bins]] = {
    "first_fit_decreasing": first_fit_decreasing,
    "modified_first_fit_decreasing": modified_first_fit_decreasing,
    "balanced": balanced,
}
