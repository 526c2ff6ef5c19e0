"""Datasets for tests, as a recipe names them."""

import random
from typing import Any

from grpo.data.tasks import largest_digit


def wrong_answers(split: str, count: int) -> list[dict[str, Any]]:
    """The largest-digit task with its answers dealt to other prompts: the same rewards to be had, nothing to learn."""
    records = largest_digit(split, count)
    answers = [record["answer"] for record in records]
    random.Random(0).shuffle(answers)
    return [{**record, "answer": answer} for record, answer in zip(records, answers, strict=True)]


def letters() -> list[dict[str, str]]:
    """Single letters, answered by themselves."""
    return [{"prompt": f"{letter}>", "answer": letter} for letter in "abcdefgh"]
