"""A covering design: few cells such that every pair of values of two factors is in one."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any


def pairwise(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Cells by a greedy rule; the same factors give the same cells. Values are compared by their position."""
    names = list(factors)
    open_pairs = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    cells = []
    while open_pairs:
        a, i, b, j = min(open_pairs, key=lambda pair: (names.index(pair[0]), pair[1], names.index(pair[2]), pair[3]))
        cell = {a: i, b: j}
        for name in names:
            if name not in cell:
                cell[name] = max(
                    range(len(factors[name])), key=lambda value: len(_pairs({**cell, name: value}, names) & open_pairs)
                )
        open_pairs -= _pairs(cell, names)
        cells.append({name: factors[name][cell[name]] for name in names})
    return cells


def _pairs(cell: Mapping[str, int], names: Sequence[str]) -> set[tuple[str, int, str, int]]:
    present = [name for name in names if name in cell]
    return {(a, cell[a], b, cell[b]) for a, b in itertools.combinations(present, 2)}
