"""Requests spread over the replicas of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Part:
    """Completions of one prompt that one replica samples."""

    prompt: int
    completions: range


def work(prompt_tokens: int, completions: int, new_tokens: int) -> int:
    """Tokens of a request: the prompt, which is computed once, and what may come of it."""
    return prompt_tokens + completions * new_tokens


def share_out(prompt_tokens: Sequence[int], completions: int, new_tokens: int, replicas: int) -> list[list[Part]]:
    """Each replica's parts, in the order of the prompts: the heaviest first, each to whoever has least.

    A prompt's completions stay together, since they find its cache; with fewer prompts than replicas they are divided.
    Which replica samples a completion does not change it.

    Args:
        prompt_tokens: lengths of the prompts.
        completions: wanted of each.
        new_tokens: at most, in each completion.
        replicas: at least 1.
    """
    parts = [
        Part(prompt, piece)
        for prompt in range(len(prompt_tokens))
        for piece in _pieces(completions, _pieces_of(prompt, len(prompt_tokens), replicas))
    ]
    weights = {part: work(prompt_tokens[part.prompt], len(part.completions), new_tokens) for part in parts}
    shares: list[list[Part]] = [[] for _ in range(replicas)]
    loads = Loads(replicas)
    for part in sorted(parts, key=weights.__getitem__, reverse=True):
        shares[loads.give(weights[part])].append(part)
    return [sorted(share, key=lambda part: (part.prompt, part.completions.start)) for share in shares]


def numbered_anew(share: Sequence[Part]) -> tuple[list[int], list[Part]]:
    """The prompts that a share is of, and its parts with their numbers among those."""
    prompts = sorted({part.prompt for part in share})
    numbers = {prompt: number for number, prompt in enumerate(prompts)}
    return prompts, [Part(numbers[part.prompt], part.completions) for part in share]


class Loads:
    """Work that each replica has."""

    def __init__(self, replicas: int) -> None:
        self._held = [0] * replicas

    def give(self, amount: int) -> int:
        """To the replica that has least, the first of several; which one that is."""
        replica = min(range(len(self._held)), key=self._held.__getitem__)
        self._held[replica] += amount
        return replica

    def done(self, replica: int, amount: int) -> None:
        """A replica has finished something."""
        self._held[replica] -= amount


def _pieces_of(prompt: int, prompts: int, replicas: int) -> int:
    """Into how many pieces a prompt is cut, so that there are as many as replicas."""
    return max(1, replicas // prompts + (prompt < replicas % prompts))


def _pieces(completions: int, count: int) -> list[range]:
    """The completions in pieces that differ by one at most, none of them empty unless nothing is wanted."""
    count = max(1, min(count, completions))
    cuts = [completions * at // count for at in range(count + 1)]
    return [range(start, end) for start, end in pairwise(cuts)]
