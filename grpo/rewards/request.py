"""What is scored and what comes back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RewardRequest:
    """One completion to be scored."""

    sample_id: str  # its own among all samples of a run; named in warnings
    prompt: str
    completion: str
    answer: str | None  # the reference answer, where the record has one
    record: Mapping[str, Any]  # the whole record (JSON values)


@dataclass(frozen=True)
class Score:
    """A finite reward, or None and the reason why there is none. A wrong answer is a reward of 0, never None."""

    value: float | None
    failure: str | None  # "timeout after 10 s"; None exactly when `value` is given
