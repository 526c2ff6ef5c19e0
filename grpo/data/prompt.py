"""One prompt, ready to be sampled from."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


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
        digest.update(np.array([len(prompt.token_ids), len(answer)], dtype="<i8").tobytes())
        digest.update(np.array(prompt.token_ids, dtype="<i8").tobytes())
        digest.update(answer)
    return digest.hexdigest()
