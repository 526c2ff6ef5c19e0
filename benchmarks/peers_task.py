"""What both sides train on: the prompts, and how completions are scored."""

from __future__ import annotations

import json
from pathlib import Path

PROMPTS = 256


def prompts() -> list[str]:
    """Of one length, so that neither side pads."""
    return [f"question number {number:03d}:" for number in range(PROMPTS)]


def write_prompts(file: Path) -> Path:
    """The prompts as a JSONL file for a recipe's `data_path`."""
    file.write_text("".join(json.dumps({"prompt": each, "answer": ""}) + "\n" for each in prompts()))
    return file


def even_share(text: str) -> float:
    """Share of the characters whose code point is even: a model can learn it, and it takes microseconds."""
    return sum(ord(character) % 2 == 0 for character in text) / max(1, len(text))


def reward(prompt: str, completion: str, answer: str | None, record: dict[str, object]) -> float:  # noqa: ARG001
    """The verifier of the recipe peers.yaml."""
    return even_share(completion)
