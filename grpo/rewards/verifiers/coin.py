"""A coin for each sample: the reward where the text says nothing, as with random weights."""

from collections.abc import Callable
from hashlib import blake2b


def coin_verifier(*, probability: float = 0.5, seed: int = 0) -> Callable[[str], float]:
    """1 with this probability, else 0, by the sample's id alone: the same in every run, whatever was sampled.

    So the groups of a run with random weights keep a spread: its advantages are not all 0. `seed` gives other coins.

    Raises:
        TypeError: the probability is not in (0, 1).
    """
    if not 0 < probability < 1:
        raise TypeError(f"probability={probability!r}: expected a number between 0 and 1")

    def toss(sample_id: str) -> float:
        digest = blake2b(f"{seed}/{sample_id}".encode(), digest_size=8).digest()
        return float(int.from_bytes(digest, "big") < probability * 2**64)

    return toss
