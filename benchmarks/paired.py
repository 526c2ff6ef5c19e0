"""Ratios of two things that were measured in turn: round by round, so that what slowed one round slowed both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Block:
    """One side's steps of one round, on average a step; seconds."""

    seconds: float
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def rest(self) -> float:
        """Seconds that no part names."""
        return self.seconds - sum(self.parts.values())


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of some figures."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            raise ValueError("no figures")
        return cls(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Of ours to theirs, each round's with its own."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} figures cannot be paired with {len(theirs)}")
    return Spread.of([mine / other for mine, other in zip(ours, theirs, strict=True)])


def part(blocks: Sequence[Block], name: str) -> list[float]:
    """A part's seconds, round by round; 0 where a side has no such part."""
    return [block.parts.get(name, 0.0) for block in blocks]
