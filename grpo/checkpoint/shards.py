"""Tensors in safetensors files: written as a stream, one tensor in memory at a time, and read back through the library.

The library's own writer is not used because it maps or copies whole files, so that a full disk is a crash instead of an
error, and because the content is hashed while it is written. Source of the format:
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from grpo.checkpoint import files
from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.checkpoint.manifest import FileEntry, TensorEntry
from grpo.errors import CheckpointError

MAX_SHARD_BYTES = 4 * 2**30
_HEADER_ALIGNMENT = 8

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


@dataclass(frozen=True)
class ShardPlan:
    """Which tensors go into which file, in the order in which they are written."""

    shards: Mapping[str, Sequence[str]]  # file name -> tensor names
    entries: Mapping[str, TensorEntry]
    tensor_bytes: int


def plan_shards(tensors: Mapping[str, Tensor], max_shard_bytes: int = MAX_SHARD_BYTES) -> ShardPlan:
    """Distribute tensors over files of at most `max_shard_bytes`; a larger tensor gets a file of its own.

    Tensors that are the same view of the same memory are stored once; views that merely overlap are stored each.
    Raises CheckpointError naming a tensor that the format cannot hold.
    """
    stored: dict[tuple[object, ...], str] = {}
    ties: dict[str, str] = {}
    for name, tensor in tensors.items():
        _check(name, tensor)
        owner = stored.setdefault(_identity(name, tensor), name)
        if owner != name:
            ties[name] = owner
    shards: dict[str, list[str]] = {}
    filled = max_shard_bytes
    # Wide types first: with no padding between tensors, each then starts at a multiple of its own width.
    for name in sorted(stored.values(), key=lambda name: -tensors[name].element_size()):
        size = tensors[name].nbytes
        if filled + size > max_shard_bytes:
            shards[f"tensors-{len(shards):05d}.safetensors"], filled = [], 0
        shards[next(reversed(shards))].append(name)
        filled += size
    place = {name: file for file, names in shards.items() for name in names}
    entries = {
        name: TensorEntry(
            dtype=_DTYPES[tensor.dtype],
            shape=list(tensor.shape),
            file=place[ties.get(name, name)],
            tied_to=ties.get(name),
        )
        for name, tensor in tensors.items()
    }
    return ShardPlan(shards, entries, sum(tensors[name].nbytes for name in place))


def write_shards(folder: Path, tensors: Mapping[str, Tensor], plan: ShardPlan) -> dict[str, FileEntry]:
    """Write the plan's files into a folder, each forced to the disk. Raises OSError."""
    entries = {}
    for file, names in plan.shards.items():
        written = files.write_file(folder / file, _shard_bytes(tensors, names, plan.entries))
        entries[file] = FileEntry(bytes=written.bytes, sha256=written.sha256)
    return entries


def read_shards(folder: Path, entries: Mapping[str, TensorEntry]) -> dict[str, Tensor]:
    """Tensors on the CPU, in memory of their own; tied ones are one object. Raises DamagedCheckpoint."""
    names: dict[str, list[str]] = {}
    for name, entry in entries.items():
        if entry.tied_to is None:
            names.setdefault(entry.file, []).append(name)
    stored: dict[str, Tensor] = {}
    for file, expected in names.items():
        stored.update(_read_shard(folder / file, expected, entries))
    try:
        return {name: stored[entry.tied_to or name] for name, entry in entries.items()}
    except KeyError as error:
        raise DamagedCheckpoint(f"{folder}: a tensor is tied to {error}, which is itself tied") from error


def _read_shard(path: Path, names: Sequence[str], entries: Mapping[str, TensorEntry]) -> dict[str, Tensor]:
    tensors = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as shard:
            if set(shard.keys()) != set(names):
                odd = sorted(set(shard.keys()) ^ set(names))
                raise DamagedCheckpoint(f"{path} does not hold the tensors of the manifest; they differ in {odd[:5]}")
            for name in names:
                # Copied out of the mapped file, which retention may delete and a network file system then takes away.
                tensors[name] = shard.get_tensor(name).clone()
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
    for name, tensor in tensors.items():
        entry = entries[name]
        found = _DTYPES.get(tensor.dtype)
        if found != entry.dtype or list(tensor.shape) != entry.shape:
            raise DamagedCheckpoint(
                f"{path}: tensor {name!r} is {found} {list(tensor.shape)}, "
                f"the manifest says {entry.dtype} {entry.shape}"
            )
    return tensors


def _check(name: str, tensor: Tensor) -> None:
    if name == "__metadata__":
        raise CheckpointError("a tensor cannot be named '__metadata__': the safetensors format keeps that name")
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        raise CheckpointError(f"tensor {name!r} is a {type(tensor).__name__}; only plain tensors can be saved")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise CheckpointError(
            f"tensor {name!r} is {tensor.layout} on {tensor.device}; only dense ones with data can be saved"
        )
    if tensor.dtype not in _DTYPES:
        valid = ", ".join(sorted(str(dtype) for dtype in _DTYPES))
        raise CheckpointError(f"tensor {name!r} is {tensor.dtype}, which the format does not have; it has {valid}")


def _identity(name: str, tensor: Tensor) -> tuple[object, ...]:
    """Equal for names of one and the same view; empty tensors have no memory to share."""
    if tensor.numel() == 0:
        return (name,)
    view = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.data_ptr(), *view)


def _shard_bytes(
    tensors: Mapping[str, Tensor], names: Sequence[str], entries: Mapping[str, TensorEntry]
) -> Iterator[memoryview | bytes]:
    header, offset = {}, 0
    for name in names:
        end = offset + tensors[name].nbytes
        header[name] = {"dtype": entries[name].dtype, "shape": entries[name].shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in names:
        yield _raw(tensors[name])


def _raw(tensor: Tensor) -> memoryview:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data
