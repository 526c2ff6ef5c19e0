"""The cells of a suite: combinations of its factors' values, every pair of them or all."""

import itertools
from collections.abc import Mapping, Sequence

from grpo.matrix.schema import Suite


def cells(suite: Suite) -> list[dict[str, str]]:
    """Every cell of the suite's design, in an order that is always the same."""
    return product(suite.factors) if suite.design == "product" else covering(suite.factors)


def product(factors: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    return [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]


def covering(factors: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Few cells that hold every pair of values of two factors, by a greedy rule."""
    names = list(factors)
    if len(names) < 2:
        return product(factors)
    open_pairs = {(a, i, b, j) for a, b in itertools.combinations(names, 2) for i in factors[a] for j in factors[b]}
    order = {(name, value): (names.index(name), place) for name in names for place, value in enumerate(factors[name])}
    chosen = []
    while open_pairs:
        a, i, b, j = min(open_pairs, key=lambda pair: (order[pair[:2]], order[pair[2:]]))
        cell = {a: i, b: j}
        for name in names:
            if name not in cell:
                gains = {value: len(_pairs({**cell, name: value}, names) & open_pairs) for value in factors[name]}
                cell[name] = max(gains, key=lambda value: gains[value])
        open_pairs -= _pairs(cell, names)
        chosen.append({name: cell[name] for name in names})
    return chosen


def _pairs(cell: Mapping[str, str], names: Sequence[str]) -> set[tuple[str, str, str, str]]:
    present = [name for name in names if name in cell]
    return {(a, cell[a], b, cell[b]) for a, b in itertools.combinations(present, 2)}
