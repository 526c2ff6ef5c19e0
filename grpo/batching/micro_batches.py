"""Which sequences share a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.batching.packing import PackingAlgorithm, pack


@dataclass(frozen=True)
class Static:
    """`rows` sequences at a time, in the order given, padded to the longest; widths are multiples of `round_to`."""

    rows: int
    round_to: int = 1


@dataclass(frozen=True)
class Dynamic:
    """Sequences of similar lengths; rows x width stays under `max_tokens`, widths are multiples of `round_to`."""

    max_tokens: int
    round_to: int = 1


@dataclass(frozen=True)
class Packed:
    """Sequences laid end to end, at most `max_tokens` in sum; the row is padded to a multiple of `round_to`.

    The padding stays under the cap too, but for a sequence that alone leaves it no room.
    """

    max_tokens: int
    algorithm: PackingAlgorithm = "modified_first_fit_decreasing"
    round_to: int = 1


Planning = Static | Dynamic | Packed


@dataclass(frozen=True)
class MicroBatch:
    """Indices of the sequences of one forward pass and the shape that is computed: `width` is None where packed.

    Without any sequence it is a dummy of one row, which weighs nothing: a rank runs it while others have work.
    """

    rows: list[int]
    width: int | None
    computed_tokens: int


def plan_micro_batches(lengths: Sequence[int], planning: Planning, *, min_count: int = 1) -> list[MicroBatch]:
    """Cut sequences of these lengths (tokens) into micro-batches: every sequence once, same input, same plan.

    At least `min_count` micro-batches come back: the largest are halved until there are as many, so that every rank can
    be given the same number. ValueError if a sequence alone is above the cap, or `min_count` above their number.
    """
    if not lengths:
        groups: list[list[int]] = []
    elif isinstance(planning, Static):
        groups = [list(range(i, min(i + planning.rows, len(lengths)))) for i in range(0, len(lengths), planning.rows)]
    elif isinstance(planning, Dynamic):
        groups = _dynamic_groups(lengths, planning)
    else:
        groups = _packed_groups(lengths, planning)
    _split_until(groups, lengths, min_count)
    return [_micro_batch(rows, lengths, planning) for rows in groups]


def padding_efficiency(lengths: Sequence[int], micro_batches: Sequence[MicroBatch]) -> float:
    """Real tokens over computed tokens; 1 without any padding, and for an empty plan."""
    computed = sum(each.computed_tokens for each in micro_batches)
    return sum(lengths) / computed if computed else 1.0


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _dynamic_groups(lengths: Sequence[int], planning: Dynamic) -> list[list[int]]:
    groups: list[list[int]] = []
    width = 0
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rounded = round_up(lengths[row], planning.round_to)
        if rounded > planning.max_tokens:
            raise ValueError(
                f"sequence {row} has {lengths[row]} tokens ({rounded} padded to a multiple of {planning.round_to}), "
                f"above the cap of {planning.max_tokens} tokens a micro-batch"
            )
        if groups and (len(groups[-1]) + 1) * width <= planning.max_tokens:  # sorted: the first row is the widest
            groups[-1].append(row)
        else:
            groups.append([row])
            width = rounded
    return groups


def _packed_groups(lengths: Sequence[int], planning: Packed) -> list[list[int]]:
    room = planning.max_tokens - planning.max_tokens % planning.round_to
    if max(lengths) > planning.max_tokens:
        return pack(lengths, planning.max_tokens, planning.algorithm)  # which names it
    alone = [[row] for row, length in enumerate(lengths) if length > room]
    others = [row for row, length in enumerate(lengths) if length <= room]
    packed = pack([lengths[row] for row in others], room, planning.algorithm)
    return alone + [[others[item] for item in each] for each in packed]


def _split_until(groups: list[list[int]], lengths: Sequence[int], count: int) -> None:
    if groups and count > len(lengths):
        raise ValueError(f"{len(lengths)} sequences cannot make {count} micro-batches")
    while groups and len(groups) < count:
        several = [index for index, rows in enumerate(groups) if len(rows) > 1]
        widest = max(several, key=lambda index: sum(lengths[row] for row in groups[index]))
        half = (len(groups[widest]) + 1) // 2
        groups[widest : widest + 1] = [groups[widest][:half], groups[widest][half:]]


def _micro_batch(rows: list[int], lengths: Sequence[int], planning: Planning) -> MicroBatch:
    if isinstance(planning, Packed):
        return MicroBatch(rows, None, round_up(sum(lengths[row] for row in rows), planning.round_to))
    width = round_up(max(lengths[row] for row in rows), planning.round_to)
    return MicroBatch(rows, width, width * len(rows))
