"""Steps of two runs that computed nearly the same number of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

COMPUTED = "train/computed_tokens"
_PARTS = ("rollout/samples", "rollout/prompt_tokens_per_sample", "rollout/generated_tokens_per_sample")
_EFFICIENCY = "train/padding_efficiency"


def computed_tokens(record: Mapping[str, Any]) -> float | None:
    """Tokens that a training pass of the step went over, padding included; None where the step does not say.

    Two systems pack the same sequences differently, so it is these that cost time and not the sequences' own tokens.
    """
    if record.get(COMPUTED) is not None:
        return float(record[COMPUTED])
    samples, prompt, generated = (record.get(name) for name in _PARTS)
    efficiency = record.get(_EFFICIENCY)
    if samples is None or prompt is None or generated is None or not efficiency:
        return None
    return float(samples * (prompt + generated) / efficiency)


def pair_by_tokens(first: Sequence[float], second: Sequence[float], tolerance: float) -> list[tuple[int, int]]:
    """Indices of as many pairs as there can be whose counts differ by at most `tolerance` of the larger; each once."""
    left = sorted(range(len(first)), key=first.__getitem__)
    right = sorted(range(len(second)), key=second.__getitem__)
    pairs, at, to = [], 0, 0
    while at < len(left) and to < len(right):
        a, b = first[left[at]], second[right[to]]
        if abs(a - b) <= tolerance * max(a, b):
            pairs.append((left[at], right[to]))
            at, to = at + 1, to + 1
        elif a < b:
            at += 1
        else:
            to += 1
    return pairs
