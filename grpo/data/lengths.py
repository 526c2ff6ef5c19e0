"""Completion lengths of a step: a distribution given its mean, cut at the maximum as sampling is."""

from __future__ import annotations

from functools import lru_cache
from math import log

from grpo.errors import ConfigError

EXPONENTIAL = 1.0


@lru_cache(maxsize=8)
def completion_lengths(count: int, *, mean: float, maximum: int, shape: float = EXPONENTIAL) -> tuple[int, ...]:
    """`count` lengths in tokens, ascending, whose mean is `mean` to half a token; the same input gives the same list.

    They are the midpoints' quantiles of a Weibull distribution, those above `maximum` cut there. With shape 1 it is the
    exponential distribution, which says least besides the mean: the longest of n is about ln(n) times the mean. Shape k
    has the longest at (ln n)^(1/k) / gamma(1 + 1/k) times the mean: 2 is a light tail, 0.7 a heavy one.

    Raises:
        ConfigError: the mean is not between 1 and the maximum, or the shape not above 0.
    """
    if not 1 <= mean <= maximum:
        raise ConfigError(f"a mean of {mean:g} tokens: expected 1 to {maximum}, the most that may be generated")
    if shape <= 0:
        raise ConfigError(f"a tail of shape {shape:g}: expected a number above 0")
    quantiles = [(-log(1 - (at + 0.5) / count)) ** (1 / shape) for at in range(count)]
    low, high = 0.0, maximum / quantiles[0]
    for _ in range(60):
        scale = (low + high) / 2
        if sum(_cut(scale * each, maximum) for each in quantiles) < mean * count:
            low = scale
        else:
            high = scale
    return tuple(int(_cut(high * each, maximum) + 0.5) for each in quantiles)


def _cut(length: float, maximum: int) -> float:
    return min(max(length, 1.0), float(maximum))
