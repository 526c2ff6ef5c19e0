"""Tensors into safetensors files, written as a stream with several files at a time.

The library's own writer is not used because it maps or copies whole files, so that a full disk is a crash instead of an
error, and because the content is hashed while it is written. Source of the format:
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from grpo.checkpoint import files
from grpo.checkpoint.manifest import FileEntry, PieceEntry, Shards, TensorEntry
from grpo.checkpoint.pieces import Piece
from grpo.errors import CheckpointError

MAX_SHARD_BYTES = 4 * 2**30
_MIN_SHARD_BYTES = 2**30  # smaller files would gain nothing
_WRITE_THREADS = 4
_HEADER_ALIGNMENT = 8

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


@dataclass(frozen=True)
class ShardPlan:
    """Which pieces go into which file, in the order in which they are written, one after another."""

    pieces: Sequence[Piece]
    shards: Mapping[str, Sequence[Piece]]  # by file name
    ties: Mapping[str, str]  # of what is stored under another name

    @cached_property
    def entries(self) -> Mapping[str, TensorEntry]:
        """What the manifest says of them; made when it is asked for, since a plan is made while training is held."""
        return _entries(self.pieces, self.shards, self.ties)

    @property
    def tensor_bytes(self) -> int:
        return sum(map(shard_bytes, self.shards.values()))


def shard_bytes(pieces: Sequence[Piece]) -> int:
    """Of the data of a file."""
    return sum(piece.data.nbytes for piece in pieces)


def plan_shards(
    pieces: Sequence[Piece], max_shard_bytes: int = MAX_SHARD_BYTES, *, prefix: str = "tensors"
) -> ShardPlan:
    """Distribute pieces over files of at most `max_shard_bytes`; a larger piece gets a file of its own.

    Where there is much, the files are smaller, so that several are written at a time. Whole tensors that are the same
    view of the same memory are stored once; views that merely overlap are stored each.
    Raises CheckpointError naming a tensor that the format cannot hold.
    """
    stored: dict[tuple[object, ...], str] = {}
    ties: dict[str, str] = {}
    kept: list[Piece] = []
    for piece in pieces:
        _check(piece.name, piece.data)
        owner = stored.setdefault(_identity(piece), piece.name)
        if owner == piece.name:
            kept.append(piece)
        else:
            ties[piece.name] = owner
    limit = min(max_shard_bytes, max(-(-shard_bytes(kept) // _WRITE_THREADS), _MIN_SHARD_BYTES))
    shards: dict[str, list[Piece]] = {}
    filled = limit
    # Wide types first: with no padding between tensors, each then starts at a multiple of its own width.
    for piece in sorted(kept, key=lambda piece: -piece.data.element_size()):
        if filled + piece.data.nbytes > limit:
            shards[f"{prefix}-{len(shards):05d}.safetensors"], filled = [], 0
        shards[next(reversed(shards))].append(piece)
        filled += piece.data.nbytes
    return ShardPlan(pieces, shards, ties)


def write_shards(
    folder: Path, plan: ShardPlan, content: Mapping[str, Tensor] | None = None, *, in_background: bool = False
) -> Shards:
    """Write the plan's files into a folder, each forced to the disk.

    The data are those of the pieces, or `content`: of each file, its bytes [data] uint8 on the CPU. In the background
    one thread a file runs where no other would, so that it takes what training leaves. Raises OSError.
    """

    def write(file: str) -> FileEntry:
        data = _live_bytes(plan.shards[file]) if content is None else iter([content[file].numpy().data])
        written = files.write_file(folder / file, _with_header(plan.shards[file], data), alone=in_background)
        return FileEntry(bytes=written.bytes, sha256=written.sha256)

    initializer = lower_priority if in_background else None
    with ThreadPoolExecutor(_WRITE_THREADS, "checkpoint-write", initializer) as pool:
        return Shards(dict(zip(plan.shards, pool.map(write, plan.shards), strict=True)), dict(plan.entries))


def lower_priority() -> None:
    """Have this thread, and those that it starts, run where no other would; Linux schedules threads, not processes."""
    os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))


def _entries(
    pieces: Sequence[Piece], shards: Mapping[str, Sequence[Piece]], ties: Mapping[str, str]
) -> dict[str, TensorEntry]:
    found: dict[str, list[PieceEntry]] = {piece.name: [] for piece in pieces}
    for file, held in shards.items():
        for piece in held:
            found[piece.name].append(PieceEntry(file=file, start=list(piece.start), stop=list(piece.stop)))
    described = {piece.name: (DTYPES[piece.data.dtype], list(piece.shape)) for piece in pieces}
    return {
        name: TensorEntry(dtype=dtype, shape=shape, pieces=found[name], tied_to=ties.get(name))
        for name, (dtype, shape) in described.items()
    }


def _check(name: str, tensor: Tensor) -> None:
    if name == "__metadata__":
        raise CheckpointError("a tensor cannot be named '__metadata__': the safetensors format keeps that name")
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        raise CheckpointError(f"tensor {name!r} is a {type(tensor).__name__}; only plain tensors can be saved")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise CheckpointError(
            f"tensor {name!r} is {tensor.layout} on {tensor.device}; only dense ones with data can be saved"
        )
    if tensor.dtype not in DTYPES:
        valid = ", ".join(sorted(str(dtype) for dtype in DTYPES))
        raise CheckpointError(f"tensor {name!r} is {tensor.dtype}, which the format does not have; it has {valid}")


def _identity(piece: Piece) -> tuple[object, ...]:
    """Equal for names of one and the same view; empty tensors have no memory to share, and parts are not tied."""
    tensor = piece.data
    if tensor.numel() == 0 or not piece.is_whole:
        return (piece.name,)
    view = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.data_ptr(), *view)


def _with_header(pieces: Sequence[Piece], data: Iterator[memoryview]) -> Iterator[memoryview | bytes]:
    header, offset = {}, 0
    for piece in pieces:
        end = offset + piece.data.nbytes
        described = {"dtype": DTYPES[piece.data.dtype], "shape": list(piece.data.shape), "data_offsets": [offset, end]}
        header[piece.key] = described
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    yield len(text).to_bytes(8, "little")
    yield text
    yield from data


def _live_bytes(pieces: Sequence[Piece]) -> Iterator[memoryview]:
    for piece in pieces:
        plain = piece.data.detach().cpu().resolve_conj().resolve_neg().contiguous()
        yield plain.reshape(-1).view(torch.uint8).numpy().data
