"""Verifiers of the jobs of these tests."""

import time


def late(prompt: str, completion: str, answer: str | None, record: dict, *, seconds: float) -> float:
    """1 for the answer, after so many seconds."""
    time.sleep(seconds)
    return float(completion.strip() == answer)
