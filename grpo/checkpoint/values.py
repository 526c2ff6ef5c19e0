"""`values.json`: what a resume needs besides tensors, exactly as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.errors import CheckpointError


def encode_values(values: Mapping[str, Any]) -> bytes:
    """JSON text of nested str, int, float, bool, None, list and dict with str keys; non-finite floats are allowed.

    Raises CheckpointError naming the place of anything else: a tuple or an int key would come back as another type.
    """
    _check(values, "values")
    return json.dumps(values).encode()


def decode_values(path: Path) -> dict[str, Any]:
    """What `encode_values` wrote. Raises DamagedCheckpoint."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise DamagedCheckpoint(f"{path} holds a {type(values).__name__}, not an object")
    return values


def _check(value: Any, place: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{place} has the key {key!r}, a {type(key).__name__}; JSON has text keys alone")
            _check(item, f"{place}[{key!r}]")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, f"{place}[{index}]")
    elif value is not None and not isinstance(value, (str, int, float, bool)):
        raise CheckpointError(
            f"{place} is a {type(value).__name__}; a checkpoint's values are str, int, float, bool, None, list and dict"
        )
