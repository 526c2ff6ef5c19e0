"""`manifest.json`: what a checkpoint consists of, and the proof that all of it is there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from grpo.checkpoint.errors import DamagedCheckpoint, NewerCheckpoint, OtherModelCheckpoint
from grpo.checkpoint.layout import MANIFEST
from grpo.checkpoint.pieces import untiled
from grpo.errors import CheckpointError

FORMAT: Literal["grpo-checkpoint"] = "grpo-checkpoint"
SCHEMA_VERSION = 2
_MISSING = "absent"


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class FileEntry(_Part):
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class PieceEntry(_Part):
    """A box of a tensor, in `file` under the name that `pieces.piece_key` gives it."""

    file: str
    start: list[int]
    stop: list[int]


class TensorEntry(_Part):
    """A whole tensor and the pieces that make it up. Of tied tensors the first is stored, the others name it."""

    dtype: str  # as in the header of a safetensors file
    shape: list[int]
    pieces: list[PieceEntry] = []
    tied_to: str | None = None


@dataclass(frozen=True)
class Shards:
    """What one process has written: its files, and the pieces in them by tensor."""

    files: Mapping[str, FileEntry]
    tensors: Mapping[str, TensorEntry]


class Manifest(_Part):
    """Files are found through this list alone, so that a later version may lay tensors out otherwise.

    In every version the file is JSON whose `sha256` is that of the other keys in canonical form (`canonical`), so that
    an altered manifest can be told from a newer one.
    """

    format: Literal["grpo-checkpoint"] = FORMAT
    schema_version: int = SCHEMA_VERSION
    step: int = Field(ge=0)
    sequence: int = Field(ge=0)  # order of saving: steps go back when an earlier checkpoint is resumed, and clocks jump
    metrics: dict[str, float]
    fingerprint: dict[str, Any]
    files: dict[str, FileEntry]
    tensors: dict[str, TensorEntry]

    @model_validator(mode="after")
    def _names_are_plain(self) -> Manifest:
        for name in self.files:
            if name in ("", ".", "..") or "/" in name or "\0" in name:
                raise ValueError(f"{name!r} is no plain file name")
        for name, tensor in self.tensors.items():
            if tensor.tied_to is not None and tensor.tied_to not in self.tensors:
                raise ValueError(f"tensor {name!r} is tied to {tensor.tied_to!r}, which is not listed")
            for piece in tensor.pieces:
                if piece.file not in self.files:
                    raise ValueError(f"tensor {name!r} lies in {piece.file!r}, which is not listed")
            problem = _incomplete(tensor)
            if problem is not None:
                raise ValueError(f"tensor {name!r} of shape {tensor.shape} is not whole: {problem}")
        return self

    @property
    def total_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())

    def to_json(self) -> bytes:
        """One line a file and a tensor: of thousands of ranks a nicer layout takes minutes to write."""
        body = self.model_dump()
        lines = [f"{json.dumps(name)}: {_laid_out(value)}" for name, value in {"sha256": _digest(body), **body}.items()]
        return ("{" + ",\n".join(lines) + "}").encode()


def _laid_out(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{" + ",\n ".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in value.items()) + "}"


def canonical(body: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys, no spaces and ASCII alone; non-finite numbers as NaN, Infinity and -Infinity."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder. Raises DamagedCheckpoint or NewerCheckpoint."""
    path = folder / MANIFEST
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        what = f"{MANIFEST} is missing" if folder.is_dir() else "no such folder"
        raise DamagedCheckpoint(f"{folder} is not a complete checkpoint: {what}") from error
    except (OSError, ValueError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise DamagedCheckpoint(f'{path} is not the manifest of a checkpoint: it lacks "format": "{FORMAT}"')
    if body.pop("sha256", None) != _digest(body):
        raise DamagedCheckpoint(f"{path} was altered: its sha256 does not fit its content")
    version = body.get("schema_version")
    if version == 1:
        body = _of_version_1(body)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise NewerCheckpoint(
            f"{path} has schema_version {version}; this grpo reads up to {SCHEMA_VERSION}. Update grpo to load it"
        )
    try:
        return Manifest.model_validate(body)
    except ValidationError as error:
        raise DamagedCheckpoint(f"{path} is not a valid manifest: {error}") from error


def check_fingerprint(folder: Path, recorded: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises OtherModelCheckpoint naming every key whose value differs."""
    here, there = _flatten(json.loads(canonical(expected))), _flatten(recorded)
    lines = [
        f"  {key}: {there.get(key, _MISSING)} in the checkpoint, {here.get(key, _MISSING)} in this run"
        for key in sorted(here.keys() | there.keys())
        if here.get(key, _MISSING) != there.get(key, _MISSING)
    ]
    if lines:
        raise OtherModelCheckpoint(
            "\n".join([f"{folder} is a checkpoint of another model:", *lines])
            + "\nResume with the configuration it was saved with, or set another checkpointing.checkpoint_dir"
        )


def merged(shards: Sequence[Shards]) -> Shards:
    """What all processes have written together.

    Raises CheckpointError if two have written one file, or if the pieces of a tensor do not make it up.
    """
    files: dict[str, FileEntry] = {}
    tensors: dict[str, TensorEntry] = {}
    pieces: dict[str, list[PieceEntry]] = {}
    for each in shards:
        twice = sorted(files.keys() & each.files.keys())
        if twice:
            raise CheckpointError(f"two processes have written {twice[0]}")
        files.update(each.files)
        for name, entry in each.tensors.items():
            pieces.setdefault(name, []).extend(entry.pieces)
            present = tensors.setdefault(name, entry)
            if present is entry:
                continue
            if (present.dtype, present.shape, present.tied_to) != (entry.dtype, entry.shape, None):
                raise CheckpointError(
                    f"the ranks disagree on tensor {name!r}: {present.dtype} {present.shape} and "
                    f"{entry.dtype} {entry.shape}"
                )
    tensors = {name: entry.model_copy(update={"pieces": pieces[name]}) for name, entry in tensors.items()}
    for name, entry in tensors.items():
        problem = _incomplete(entry)
        if problem is not None:
            raise CheckpointError(f"the ranks have not written all of tensor {name!r} {entry.shape}: {problem}")
    return Shards(files, tensors)


def _incomplete(entry: TensorEntry) -> str | None:
    if entry.tied_to is not None:
        return None if not entry.pieces else "it is tied and has pieces of its own"
    return untiled(entry.shape, [(piece.start, piece.stop) for piece in entry.pieces])


def _of_version_1(body: Mapping[str, Any]) -> dict[str, Any]:
    """Version 1 had one file a tensor, which it named also where the tensor was tied to another."""
    tensors = body.get("tensors")
    if not isinstance(tensors, dict) or not all(isinstance(entry, dict) for entry in tensors.values()):
        return dict(body)  # refused as it is
    upgraded = {}
    for name, entry in tensors.items():
        plain = {key: value for key, value in entry.items() if key != "file"}
        shape = entry.get("shape")
        stored = "file" in entry and isinstance(shape, list) and entry.get("tied_to") is None
        if stored:
            plain["pieces"] = [{"file": entry["file"], "start": [0] * len(shape), "stop": shape}]
        upgraded[name] = plain
    return {**body, "schema_version": SCHEMA_VERSION, "tensors": upgraded}


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(body)).hexdigest()


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            flat.update(_flatten(item, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = json.dumps(item, sort_keys=True)
    return flat
