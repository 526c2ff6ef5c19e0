"""The tensors of a checkpoint as they lie on the disk, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.checkpoint.manifest import TensorEntry
from grpo.checkpoint.shards import _DTYPES

_TORCH = {name: dtype for dtype, name in _DTYPES.items()}


class StoredTensor:
    def __init__(self, name: str, entry: TensorEntry, folder: Path) -> None:
        self._name, self._entry, self._path = name, entry, folder / entry.file

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._entry.shape)

    @property
    def dtype(self) -> torch.dtype:
        return _TORCH[self._entry.dtype]

    def __getitem__(self, part: EllipsisType) -> Tensor:
        try:
            with safe_open(self._path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(self._name).clone()
                return tensor
        except (OSError, SafetensorError) as error:
            raise DamagedCheckpoint(f"{self._path} cannot be read: {error}") from error


class StoredTensors(Mapping[str, StoredTensor]):
    def __init__(self, folder: Path, entries: Mapping[str, TensorEntry]) -> None:
        self._entries, self._folder = entries, folder

    def owner(self, name: str) -> str:
        return self._entries[name].tied_to or name

    def __getitem__(self, name: str) -> StoredTensor:
        owner = self.owner(name)
        return StoredTensor(owner, self._entries[owner], self._folder)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
