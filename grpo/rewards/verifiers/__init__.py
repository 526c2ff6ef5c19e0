"""Verifiers by name: functions `(prompt, completion, answer, record) -> float` that raise when they cannot tell."""

from collections.abc import Callable, Mapping
from typing import Any

from grpo.errors import RewardError

# (prompt: str, completion: str, answer: str | None, record: Mapping) -> float, called by keyword
Verifier = Callable[..., Any]
COIN = "coin"  # judges no text, and so is no function of it: see `grpo.rewards.verifiers.coin`
BUILT_IN = ("math", "reasoning_gym", "exact_match", COIN)


def check_name(verifier: str) -> None:
    """Raise RewardError unless `verifier` is a built-in name or has the form 'module:function'."""
    module, colon, function = verifier.partition(":")
    if verifier not in BUILT_IN and not (module and colon and function):
        raise RewardError(
            f"verifier {verifier!r}: must be one of {', '.join(map(repr, BUILT_IN))}, or your own 'module:function'"
        )


def load_verifier(verifier: str, kwargs: Mapping[str, Any]) -> Verifier:
    """Import what `verifier` names and check it with `kwargs`.

    Raises RewardError for an unknown name, a missing module or function, a wrong signature or unknown `kwargs`.
    """
    check_name(verifier)
    if ":" in verifier:
        from grpo.rewards.verifiers.function import load_function

        return load_function(verifier, kwargs)
    try:
        return _load_built_in(verifier, kwargs)
    except TypeError as error:
        raise RewardError(f"verifier {verifier!r}, kwargs {dict(kwargs)!r}: {error}") from error


def _load_built_in(verifier: str, kwargs: Mapping[str, Any]) -> Verifier:
    if verifier == "math":
        from grpo.rewards.verifiers.math import math_verifier

        return math_verifier(**kwargs)
    if verifier == "reasoning_gym":
        from grpo.rewards.verifiers.reasoning_gym import reasoning_gym_verifier

        return reasoning_gym_verifier(**kwargs)
    from grpo.rewards.verifiers.exact_match import exact_match_verifier

    return exact_match_verifier(**kwargs)
