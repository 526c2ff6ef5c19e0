"""Tasks that need no download and that a tiny model learns from random weights."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Literal
from zlib import crc32

from grpo.data.permutation import permutation
from grpo.errors import DataError

DIGITS = 4
HELD_OUT_PART = 5  # one prompt in this many is held out
TRAIN_REPEATS = 4  # at most so many copies of a training prompt, for the small answers, which have few prompts
MAX_CONSTANT_SCORE = 0.2


def best_constant_score(answers: Sequence[str]) -> float:
    """The share of the most frequent answer: what the best constant reply scores under exact match."""
    if not answers:
        raise DataError("no answers: the score of a constant reply is undefined")
    return max(Counter(answers).values()) / len(answers)


def largest_digit(split: Literal["train", "heldout"], count: int, seed: int = 0) -> list[dict[str, str]]:
    """Records `{"prompt": "3,7,2,5=", "answer": "7"}`: the largest of four digits.

    The two splits share no prompt, whatever the seed: crc32 of the prompt decides. Answers are as evenly spread as the
    prompts allow (k is the answer of (k+1)^4 - k^4 prompts: 0 of one, 9 of 3,439), so that a constant reply scores at
    most 0.2. Held-out prompts are distinct; a training prompt is given at most `TRAIN_REPEATS` times.

    Raises DataError for an unknown split, and for a count that is not positive or that cannot be balanced.
    """
    if split not in ("train", "heldout"):
        raise DataError(f"largest_digit: split {split!r} is unknown; valid: 'train', 'heldout'")
    pools = _prompts_by_answer(held_out=split == "heldout")
    repeats = TRAIN_REPEATS if split == "train" else 1
    shares = _even_shares([len(pool) * repeats for pool in pools], count)
    limit = _largest_balanced([len(pool) * repeats for pool in pools])
    if not 0 < count <= limit:
        raise DataError(f"largest_digit: count {count} is out of range for split {split!r}; valid: 1 to {limit}")
    chosen = []
    for answer, (pool, share) in enumerate(zip(pools, shares, strict=True)):
        order = permutation(len(pool), seed=seed, stream=answer)
        chosen += [{"prompt": pool[order[i % len(pool)]], "answer": str(answer)} for i in range(share)]
    return [chosen[i] for i in permutation(len(chosen), seed=seed, stream=len(pools))]


def _prompts_by_answer(*, held_out: bool) -> list[list[str]]:
    pools: list[list[str]] = [[] for _ in range(10)]
    for digits in product(range(10), repeat=DIGITS):
        prompt = ",".join(map(str, digits)) + "="
        if (crc32(prompt.encode()) % HELD_OUT_PART == 0) == held_out:
            pools[max(digits)].append(prompt)
    return pools


def _even_shares(capacities: Sequence[int], count: int) -> list[int]:
    """`count` dealt out as evenly as the capacities allow; what is left over goes to the largest answers."""
    level = 0
    while sum(min(c, level + 1) for c in capacities) <= count and level < max(capacities):
        level += 1
    shares = [min(c, level) for c in capacities]
    for k in reversed(range(len(capacities))):
        if sum(shares) < count and capacities[k] > level:
            shares[k] += 1
    return shares


def _largest_balanced(capacities: Sequence[int]) -> int:
    """The largest count of which no answer has more than `MAX_CONSTANT_SCORE`."""
    best = 0
    for level in range(1, max(capacities) + 1):
        total = sum(min(c, level) for c in capacities)
        if level <= MAX_CONSTANT_SCORE * total:
            best = total
    return best
