"""One prompt, ready to be sampled from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """A tokenised prompt and what its verifier needs."""

    prompt_id: str  # stable name of the record: source and position
    text: str  # as rendered by the chat template
    token_ids: tuple[int, ...]
    env_name: str  # which verifier scores it
    answer: str | None  # the reference answer, where the record has one
    record: Mapping[str, Any]  # the whole record (JSON values), for verifiers that need more
