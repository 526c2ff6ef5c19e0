"""One prompt, ready to be sampled from."""

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
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


def fingerprint_of(prompts: Iterable[Prompt]) -> str:
    """sha256 (hex) over token ids and answers, in order: equal for what is equal to train on."""
    digest = hashlib.sha256()
    for prompt in prompts:
        answer = json.dumps(prompt.answer).encode()
        ids = prompt.token_ids
        digest.update(struct.pack(f"<{2 + len(ids)}q", len(ids), len(answer), *ids))
        digest.update(answer)
    return digest.hexdigest()
