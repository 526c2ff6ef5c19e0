"""What both sides train on: the prompts, and how completions are scored."""

from __future__ import annotations

PROMPTS = 256


def prompts() -> list[str]:
    """Of one length, so that neither side pads."""
    return [f"question number {number:03d}:" for number in range(PROMPTS)]


def even_share(text: str) -> float:
    """Share of the characters whose code point is even: a model can learn it, and it takes microseconds."""
    return sum(ord(character) % 2 == 0 for character in text) / max(1, len(text))


def reward(prompt: str, completion: str, answer: str | None, record: dict[str, object]) -> float:  # noqa: ARG001
    """The verifier of the recipe peers.yaml."""
    return even_share(completion)
