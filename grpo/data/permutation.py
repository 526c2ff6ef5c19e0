"""Shuffles that are the same on every machine and with every version of every library."""

import numpy as np
from numpy.typing import NDArray


def permutation(size: int, *, seed: int, stream: int) -> NDArray[np.int64]:
    """A permutation of `range(size)`, a pure function of (size, seed, stream); [size] int64.

    The order of `size` raw words of Philox 4x64 (Salmon et al. 2011) with the key (seed, stream). NumPy promises the
    words of a bit generator for all versions, and not those of `Generator.permutation`.
    """
    words = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(size)
    return np.argsort(words, kind="stable").astype(np.int64)
