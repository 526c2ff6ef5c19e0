"""Parts of tensors: what one rank has of a tensor that is cut over many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """The box `start` to `stop` of a tensor of `shape`; `data` is that box, the live tensor on its device."""

    name: str  # of the whole tensor
    shape: tuple[int, ...]
    start: tuple[int, ...]
    data: Tensor

    @classmethod
    def whole(cls, name: str, tensor: Tensor) -> Piece:
        return cls(name, tuple(tensor.shape), (0,) * tensor.ndim, tensor)

    @property
    def stop(self) -> tuple[int, ...]:
        return tuple(first + size for first, size in zip(self.start, self.data.shape, strict=True))

    @property
    def is_whole(self) -> bool:
        return tuple(self.data.shape) == self.shape

    @property
    def key(self) -> str:
        return piece_key(self.name, self.shape, self.start, self.stop)


def whole_pieces(tensors: Mapping[str, Tensor]) -> list[Piece]:
    return [Piece.whole(name, tensor) for name, tensor in tensors.items()]


def piece_key(name: str, shape: Sequence[int], start: Sequence[int], stop: Sequence[int]) -> str:
    """The name of a piece in its file: the tensor's own where it is whole, else with its box, `w[0:4,2:8]`."""
    if list(stop) == list(shape) and not any(start):
        return name
    return f"{name}[{','.join(f'{first}:{end}' for first, end in zip(start, stop, strict=True))}]"


def common_box(
    start: Sequence[int], stop: Sequence[int], other_start: Sequence[int], other_stop: Sequence[int]
) -> tuple[tuple[int, int], ...] | None:
    """Where two boxes overlap, (first, past the last) in each dimension; None where they do not."""
    box = tuple(
        (max(first, other_first), min(end, other_end))
        for first, end, other_first, other_end in zip(start, stop, other_start, other_stop, strict=True)
    )
    return box if all(first < end for first, end in box) else None


def untiled(shape: Sequence[int], boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> str | None:
    """Why boxes do not make up a tensor, each element once; None where they do."""
    if any(
        len(start) != len(shape)
        or len(stop) != len(shape)
        or any(not 0 <= first <= end <= size for first, end, size in zip(start, stop, shape, strict=True))
        for start, stop in boxes
    ):
        return "a piece lies outside"
    covered = sum(_volume(start, stop) for start, stop in boxes)
    if covered != _volume([0] * len(shape), shape):
        return f"its pieces have {covered} elements together"
    return "two pieces overlap" if _overlap(boxes) else None


def _volume(start: Sequence[int], stop: Sequence[int]) -> int:
    volume = 1
    for first, end in zip(start, stop, strict=True):
        volume *= end - first
    return volume


def _overlap(boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> bool:
    """Sweep along the dimension that is cut most: thousands of ranks may have a box each."""
    filled = [box for box in boxes if _volume(*box)]
    if len(filled) < 2 or not filled[0][0]:
        return len(filled) > 1
    axis = max(range(len(filled[0][0])), key=lambda each: len({start[each] for start, _ in filled}))
    reached: list[tuple[Sequence[int], Sequence[int]]] = []
    for start, stop in sorted(filled, key=lambda box: box[0][axis]):
        reached = [other for other in reached if other[1][axis] > start[axis]]
        if any(common_box(start, stop, *other) is not None for other in reached):
            return True
        reached.append((start, stop))
    return False


def flat_boxes(start: int, stop: int, width: int) -> Iterator[tuple[int, int, tuple[int, int], tuple[int, int]]]:
    """The flat elements `start` to `stop` of rows of `width` as at most three boxes.

    Of each: its flat elements (first, past the last), its rows and its columns.
    """
    while start < stop:
        row, column = divmod(start, width)
        rows = (stop - start) // width
        end = min(stop, (row + 1) * width) if column or not rows else start + rows * width
        columns = (column, column + end - start) if column or not rows else (0, width)
        yield start, end, (row, max(row + 1, row + (end - start) // width)), columns
        start = end
