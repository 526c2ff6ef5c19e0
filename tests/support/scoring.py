"""Verifiers for tests, as a recipe names them."""


def equal(prompt: str, completion: str, answer: str | None, record: dict) -> float:
    return float(completion == answer)
