"""`values.json`: what a resume needs besides tensors, exactly as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.errors import CheckpointError

_TENSOR = "$tensor"


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


def separate(values: Any, prefix: str) -> tuple[Any, dict[str, Tensor]]:
    """Nested values in which some are tensors, as values without and tensors by name.

    A tensor's name is `prefix` and its place; what stands there instead is read by `reunite`.
    Raises CheckpointError if a dict has the key that marks such places.
    """
    tensors: dict[str, Tensor] = {}

    def without(value: Any, place: str) -> Any:
        if isinstance(value, Tensor):
            tensors[place] = value
            return {_TENSOR: place}
        if isinstance(value, dict):
            if _TENSOR in value:
                raise CheckpointError(f"{place} has the key {_TENSOR!r}, which marks the places of tensors")
            return {key: without(item, f"{place}/{key}") for key, item in value.items()}
        if isinstance(value, list):
            return [without(item, f"{place}/{index}") for index, item in enumerate(value)]
        return value

    return without(values, prefix), tensors


def reunite(values: Any, tensors: Mapping[str, Any]) -> Any:
    """Take back what `separate` gave, from tensors or stored ones."""
    if isinstance(values, dict):
        if _TENSOR in values:
            return tensors[values[_TENSOR]][...]
        return {key: reunite(item, tensors) for key, item in values.items()}
    if isinstance(values, list):
        return [reunite(item, tensors) for item in values]
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
