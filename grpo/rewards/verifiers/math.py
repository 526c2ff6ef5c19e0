"""Mathematical equality, by math-verify."""

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from grpo.rewards.verifiers import Verifier


def math_verifier(*, strict: bool = True, float_rounding: int = 6, numeric_precision: int = 15) -> Verifier:
    """1 if an expression in the completion equals the reference answer, 0 if none does or none is found.

    The options are those of `math_verify.verify`. math-verify's own limits use SIGALRM, which works in the main thread
    alone and turned every answer into a wrong one elsewhere: they are off, the pool of processes has the limit. A
    reference answer that cannot be parsed, and a comparison that fails, raise: neither makes the completion wrong.
    """
    from math_verify import parse, verify

    # Both warn, once, that the limit is elsewhere.
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.ERROR)

    @lru_cache(maxsize=1024)
    def reference(answer: str) -> list[Any]:
        parsed: list[Any] = parse(answer, parsing_timeout=None, raise_on_error=True)
        # Bare LaTeX is not found in running text; a reference answer is an expression as a whole.
        parsed = parsed or parse(f"\\boxed{{{answer}}}", parsing_timeout=None, raise_on_error=True)
        if not parsed:
            raise ValueError(f"the reference answer {answer[:100]!r} has no mathematical expression")
        return parsed

    def score(prompt: str, completion: str, answer: str | None, record: Mapping[str, Any]) -> float:  # noqa: ARG001
        if answer is None:
            raise ValueError("the record has no reference answer")
        gold = reference(answer)
        found = parse(completion, parsing_timeout=None, raise_on_error=True)
        return float(
            verify(
                gold,
                found,
                strict=strict,
                float_rounding=float_rounding,
                numeric_precision=numeric_precision,
                timeout_seconds=None,
                raise_on_error=True,
            )
        )

    return score
