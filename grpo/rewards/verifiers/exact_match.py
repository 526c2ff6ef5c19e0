"""The completion is the answer, character for character."""

from collections.abc import Mapping
from typing import Any

from grpo.rewards.verifiers import Verifier


def exact_match_verifier(*, strip: bool = True, ignore_case: bool = False) -> Verifier:
    """1 if the completion equals the reference answer, else 0.

    strip: without white space at both ends. ignore_case: compared with `str.casefold`.
    """

    def normalised(text: str) -> str:
        text = text.strip() if strip else text
        return text.casefold() if ignore_case else text

    def verify(prompt: str, completion: str, answer: str | None, record: Mapping[str, Any]) -> float:  # noqa: ARG001
        if answer is None:
            raise ValueError("the record has no reference answer")
        return float(normalised(completion) == normalised(answer))

    return verify
