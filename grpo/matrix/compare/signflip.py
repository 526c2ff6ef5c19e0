"""An exact one-sided test of paired ratios."""

import math
from collections.abc import Sequence

import numpy as np

MOST_PAIRS = 40
_ROUNDING = 1e-12


def sign_flip_p(ratios: Sequence[float]) -> float:
    """How often chance gives a mean log ratio as large as this, were every ratio as likely inverted.

    Exact over all 2^n sign patterns (Fisher's randomisation test of paired differences), by halves: the sums of one
    half are sorted, and counted against those of the other. Raises ValueError for no pair, more than 40, and ratios
    that are not positive.
    """
    if not 1 <= len(ratios) <= MOST_PAIRS or not all(ratio > 0 for ratio in ratios):
        raise ValueError(f"sign_flip_p needs 1 to {MOST_PAIRS} positive ratios, not {list(ratios)}")
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    observed = float(logs.sum())
    slack = _ROUNDING * max(1.0, float(np.abs(logs).sum()))
    half = len(logs) // 2
    first, second = _signed_sums(logs[:half]), np.sort(_signed_sums(logs[half:]))
    below = np.searchsorted(second, observed - slack - first, side="left")
    return float((len(second) - below).sum() / math.ldexp(1.0, len(logs)))


def _signed_sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums
