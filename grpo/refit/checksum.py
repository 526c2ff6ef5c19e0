"""Whether what arrived is what was sent: a sum of each bucket's words, made on the device that holds it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Checks = Literal["full", "sampled", "off"]

_ONE_IN = 8  # buckets, of which a sampled refit looks at one: another in each version


class Checksums:
    """Sums of the buckets of one refit; the device is read once, by `values`."""

    def __init__(self, checks: Checks, buckets: int, version: int) -> None:
        self._chosen = chosen(checks, buckets, version)
        self._sums: dict[int, Tensor] = {}

    def add(self, index: int, flat: Tensor) -> None:
        """Take up a bucket's content, [n] uint8 with whole 32-bit words, if it is one of those to check."""
        if index in self._chosen:
            self._sums[index] = flat.view(torch.int32).sum(dtype=torch.int64)

    def values(self) -> dict[int, int]:
        """By bucket; waits for the device."""
        if not self._sums:
            return {}
        return dict(zip(self._sums, torch.stack(list(self._sums.values())).tolist(), strict=True))


def chosen(checks: Checks, buckets: int, version: int) -> frozenset[int]:
    """The buckets to check. Sampled, eight versions in a row look at every one."""
    if checks == "off" or not buckets:
        return frozenset()
    stride = min(_ONE_IN, buckets) if checks == "sampled" else 1
    return frozenset(range(version % stride, buckets, stride))
