"""Sampling seeds that depend on what is sampled, not on when: a resumed or re-batched run draws the same tokens."""

import hashlib


def sampling_seed(run_seed: int, purpose: str, number: int) -> int:
    """A seed in [0, 2**63) for drawing `number` of `purpose`; different in every argument."""
    digest = hashlib.blake2b(f"{run_seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
