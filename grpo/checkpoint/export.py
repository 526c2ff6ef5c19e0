"""From a checkpoint to a Hugging Face folder, one tensor in memory at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from grpo.checkpoint import files
from grpo.checkpoint.manifest import read_manifest
from grpo.checkpoint.reading import open_checkpoint
from grpo.checkpoint.stored import StoredTensor
from grpo.errors import CheckpointError

ExportDtype = Literal["float32", "bfloat16", "float16"]
MAX_SHARD_BYTES = 5 * 10**9  # as transformers cuts them
_WEIGHTS = "policy/model."  # under these names a checkpoint has what transformers calls the rest
_TYPES: Mapping[str, tuple[torch.dtype, str]] = {
    "float32": (torch.float32, "F32"), "bfloat16": (torch.bfloat16, "BF16"), "float16": (torch.float16, "F16"),
}  # fmt: skip
_TOKENIZER_FILES = (
    "tokenizer", "special_tokens_map", "added_tokens", "vocab", "merges", "chat_template", "generation_config",
)  # fmt: skip
_ALIGNMENT = 8
_OVERHEAD_BYTES = 2**20

assert set(_TYPES) == set(get_args(ExportDtype))


@dataclass(frozen=True)
class Exported:
    """A folder that transformers and vLLM load. `bytes` are those of the weights."""

    folder: Path
    step: int
    weights: tuple[str, ...]  # file names
    bytes: int


def export_checkpoint(
    checkpoint: Path,
    folder: Path,
    *,
    dtype: ExportDtype,
    tokenizer: Path,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Exported:
    """Write config.json, the tokenizer and the weights; the folder appears when all of it is on the disk.

    The checkpoint is verified first and held, so that retention leaves it alone meanwhile.

    Args:
        checkpoint: a `step_N`.
        folder: new or empty.
        dtype: of the weights; a checkpoint has float32.
        tokenizer: folder whose tokenizer, chat template and generation_config.json are copied.
        max_shard_bytes: of one safetensors file; a larger tensor gets a file of its own.

    Raises:
        CheckpointError: the folder is not empty, the checkpoint is damaged or is not of a model that transformers
            knows, the disk is full; nothing is left behind.
    """
    partial = _partial(folder)
    with open_checkpoint(checkpoint, None) as opened:
        fingerprint = read_manifest(checkpoint).fingerprint
        named = {name.removeprefix(_WEIGHTS): opened.tensors[name] for name in opened.tensors if _is_weight(name)}
        plan = _plan(named, _TYPES[dtype][0].itemsize, max_shard_bytes)
        try:
            files.make_folder(partial)
            _check_space(folder, named, dtype)
            _write_config(partial, checkpoint, fingerprint.get("model"), dtype)
            _check_complete(partial, checkpoint, named)
            _copy_tokenizer(tokenizer, partial)
            total = sum(_write_shard(partial / file, names, named, dtype) for file, names in plan.items())
            _write_index(partial, plan, named, dtype)
            _finish(partial, folder)
        except OSError as error:
            _discard(partial)
            raise CheckpointError(f"cannot export to {folder}: {error.strerror or error}") from error
        except BaseException:
            _discard(partial)
            raise
    return Exported(folder, opened.step, tuple(plan), total)


def _is_weight(name: str) -> bool:
    return name.startswith(_WEIGHTS)


def _partial(folder: Path) -> Path:
    """Where the folder grows. Raises CheckpointError where it cannot become the folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists and is not an empty folder; it is left alone. Name a new one")
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():
        raise CheckpointError(f"{partial} is there, of an export that is going on or was killed: delete it, or wait")
    return partial


def _plan(named: Mapping[str, StoredTensor], width: int, max_shard_bytes: int) -> dict[str, list[str]]:
    """File name -> tensors, in the order of the checkpoint."""
    shards: list[list[str]] = []
    filled = max_shard_bytes
    for name, tensor in named.items():
        size = tensor.shape.numel() * width
        if filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    return {f"model-{n:05d}-of-{len(shards):05d}.safetensors": names for n, names in enumerate(shards, start=1)}


def _bytes_of(named: Mapping[str, StoredTensor], dtype: ExportDtype) -> int:
    return sum(tensor.shape.numel() for tensor in named.values()) * _TYPES[dtype][0].itemsize


def _check_space(folder: Path, named: Mapping[str, StoredTensor], dtype: ExportDtype) -> None:
    needed, free = _bytes_of(named, dtype) + _OVERHEAD_BYTES, shutil.disk_usage(folder.parent).free
    if free < needed:
        raise CheckpointError(f"cannot export to {folder}: needed {needed} bytes, free {free} bytes")


def _write_config(folder: Path, checkpoint: Path, model: Any, dtype: ExportDtype) -> None:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = str(model.get("model_type")) if isinstance(model, Mapping) else ""
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise CheckpointError(
            f"{checkpoint}: its model_type {kind!r} is none that transformers has a language model for"
        )
    config = AutoConfig.for_model(**model)
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]
    config.dtype = _TYPES[dtype][0]
    files.write_file(folder / "config.json", [config.to_json_string(use_diff=True).encode()])


def _check_complete(folder: Path, checkpoint: Path, named: Mapping[str, StoredTensor]) -> None:
    from grpo.models.sharded_loading import shape_of_model

    wanted = {name: parameter.shape for name, parameter in shape_of_model(folder).named_parameters()}
    odd = sorted(wanted.keys() ^ named.keys()) or [name for name in wanted if wanted[name] != named[name].shape]
    if odd:
        raise CheckpointError(
            f"{checkpoint} does not hold the weights of its model: {len(odd)} names or shapes differ, first {odd[0]}"
        )


def _copy_tokenizer(source: Path, folder: Path) -> None:
    for file in sorted(source.iterdir()):
        if file.is_file() and file.name.startswith(_TOKENIZER_FILES):
            files.write_file(folder / file.name, [file.read_bytes()])


def _write_shard(path: Path, names: Sequence[str], named: Mapping[str, StoredTensor], dtype: ExportDtype) -> int:
    return files.write_file(path, _shard(names, named, dtype)).bytes


def _shard(names: Sequence[str], named: Mapping[str, StoredTensor], dtype: ExportDtype) -> Iterator[memoryview | bytes]:
    """Source of the format: https://github.com/huggingface/safetensors#format ."""
    target, label = _TYPES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        end = offset + named[name].shape.numel() * target.itemsize
        header[name] = {"dtype": label, "shape": list(named[name].shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield _raw(named[name][...].to(target))


def _raw(tensor: Tensor) -> memoryview:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _write_index(
    folder: Path, plan: Mapping[str, Sequence[str]], named: Mapping[str, StoredTensor], dtype: ExportDtype
) -> None:
    if len(plan) == 1:
        return
    index = {
        "metadata": {"total_size": _bytes_of(named, dtype)},
        "weight_map": {name: file for file, names in plan.items() for name in names},
    }
    files.write_file(folder / "model.safetensors.index.json", [json.dumps(index, indent=2).encode()])


def _finish(partial: Path, folder: Path) -> None:
    files.sync_folder(partial)
    if folder.exists():
        folder.rmdir()  # empty: some network file systems rename onto no folder at all
    files.rename(partial, folder)
    files.sync_folder(folder.parent)


def _discard(partial: Path) -> None:
    with suppress(OSError):  # the error that led here is the one to tell
        files.remove_tree(partial)
