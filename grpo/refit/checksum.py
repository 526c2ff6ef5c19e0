"""Whether what arrived is what was sent: a sum of each bucket's words by their places, on the device that holds it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Checks = Literal["full", "sampled", "off"]

_COLUMNS = 512
_ONE_IN = 8  # buckets, of which a sampled refit looks at one: another in each version


class Checksums:
    """Sums of the buckets of one refit; the device is read once, by `values`."""

    def __init__(self, checks: Checks, buckets: int, version: int) -> None:
        self._chosen = chosen(checks, buckets, version)
        self._sums: dict[int, Tensor] = {}

    def add(self, index: int, flat: Tensor) -> None:
        """Take up a bucket's content, [n] uint8 with whole 64-bit words, if it is one of those to check."""
        if index in self._chosen:
            self._sums[index] = placed_sum(flat.view(torch.int64))

    def values(self) -> dict[int, int]:
        """By bucket; waits for the device."""
        if not self._sums:
            return {}
        return dict(zip(self._sums, torch.stack(list(self._sums.values())).tolist(), strict=True))


def placed_sum(words: Tensor) -> Tensor:
    """Of words [n] int64, modulo 2^64: another one where a word differs, or where pieces have changed places.

    A word in row i and column j of a table of 512 columns counts 2i + 1 + 2(j + 1) times, which is odd: no change of
    one word is lost. The words after the last whole row count as a row each.
    """
    whole = len(words) - len(words) % _COLUMNS
    table = words[:whole].view(-1, _COLUMNS)
    rows, columns = torch.cat([table.sum(1), words[whole:]]), table.sum(0)
    return (rows * _odd(rows)).sum() + (columns * (_odd(columns) + 1)).sum()


def _odd(like: Tensor) -> Tensor:
    """1, 3, 5 and so on, one for each element."""
    return 2 * torch.arange(len(like), device=like.device) + 1


def chosen(checks: Checks, buckets: int, version: int) -> frozenset[int]:
    """The buckets to check. Sampled, eight versions in a row look at every one."""
    if checks == "off" or not buckets:
        return frozenset()
    stride = min(_ONE_IN, buckets) if checks == "sampled" else 1
    return frozenset(range(version % stride, buckets, stride))
