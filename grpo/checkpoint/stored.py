"""The tensors of a checkpoint as they lie on the disk: any part of each, whichever pieces it is stored in.

Everything is read through the safetensors library, which parses a header of JSON and no code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from grpo.checkpoint.errors import DamagedCheckpoint
from grpo.checkpoint.manifest import PieceEntry, TensorEntry
from grpo.checkpoint.pieces import common_box, piece_key
from grpo.checkpoint.shards import DTYPES

_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
Part = slice | EllipsisType | tuple[slice, ...]


class StoredTensor:
    """A tensor that is read when it is indexed: `x[...]`, `x[2:4]`, `x[:, 1:3]`, without steps, on the CPU."""

    def __init__(self, name: str, entry: TensorEntry, files: Mapping[str, Any], folder: Path) -> None:
        self._name, self._entry, self._files, self._folder = name, entry, files, folder

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._entry.shape)

    @property
    def dtype(self) -> torch.dtype:
        return _TORCH_DTYPES[self._entry.dtype]

    def get_shape(self) -> list[int]:
        """As the slices of the safetensors library have it."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """As in the header of a safetensors file."""
        return self._entry.dtype

    def __getitem__(self, part: Part) -> Tensor:
        """A part in memory of its own. Raises DamagedCheckpoint."""
        given = () if part is Ellipsis else part if isinstance(part, tuple) else (part,)
        bounds = [each.indices(size) for each, size in zip(given, self.shape, strict=False)]
        bounds += [(0, size, 1) for size in self.shape[len(bounds) :]]
        start, stop = [first for first, _, _ in bounds], [max(first, end) for first, end, _ in bounds]
        whole = torch.empty([end - first for first, end in zip(start, stop, strict=True)], dtype=self.dtype)
        for piece in self._entry.pieces:
            box = common_box(start, stop, piece.start, piece.stop)
            if box is not None:
                target = tuple(slice(a - first, b - first) for (a, b), first in zip(box, start, strict=True))
                whole[target] = self._read(piece, box)
        return whole

    def _read(self, piece: PieceEntry, box: tuple[tuple[int, int], ...]) -> Tensor:
        key = piece_key(self._name, self._entry.shape, piece.start, piece.stop)
        file = self._files[piece.file]
        try:
            if not box:
                return file.get_tensor(key)  # type: ignore[no-any-return]
            within = tuple(slice(a - first, b - first) for (a, b), first in zip(box, piece.start, strict=True))
            return file.get_slice(key)[within]  # type: ignore[no-any-return]
        except (OSError, SafetensorError) as error:
            raise DamagedCheckpoint(f"{self._folder / piece.file} cannot be read: {error}") from error


class StoredTensors(Mapping[str, StoredTensor]):
    """All tensors of a checkpoint folder by name; its files stay open until it is closed."""

    def __init__(self, folder: Path, entries: Mapping[str, TensorEntry]) -> None:
        """Raises DamagedCheckpoint naming a file that is not what the entries say."""
        self._entries = entries
        self._folder = folder
        expected: dict[str, dict[str, tuple[str, list[int]]]] = {}
        for name, entry in entries.items():
            for piece in entry.pieces:
                key = piece_key(name, entry.shape, piece.start, piece.stop)
                shape = [end - first for first, end in zip(piece.start, piece.stop, strict=True)]
                expected.setdefault(piece.file, {})[key] = (entry.dtype, shape)
            if entry.tied_to is not None and entries[entry.tied_to].tied_to is not None:
                raise DamagedCheckpoint(f"{folder}: {name!r} is tied to {entry.tied_to!r}, which is itself tied")
        with ExitStack() as stack:
            self._files = {file: stack.enter_context(_opened(folder / file, held)) for file, held in expected.items()}
            self._stack = stack.pop_all()

    def __getitem__(self, name: str) -> StoredTensor:
        owner = self.owner(name)
        return StoredTensor(owner, self._entries[owner], self._files, self._folder)

    def owner(self, name: str) -> str:
        """Of a tied tensor the one that is stored, of another itself."""
        return self._entries[name].tied_to or name

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_shards(folder: Path, entries: Mapping[str, TensorEntry]) -> dict[str, Tensor]:
    """Whole tensors on the CPU, in memory of their own; tied ones are one object. Raises DamagedCheckpoint."""
    with StoredTensors(folder, entries) as stored:
        return read_all(stored)


def read_all(stored: StoredTensors) -> dict[str, Tensor]:
    """As `read_shards`."""
    owners = {name: stored.owner(name) for name in stored}
    whole = {name: stored[name][...] for name in dict.fromkeys(owners.values())}
    return {name: whole[owner] for name, owner in owners.items()}


def _opened(path: Path, expected: Mapping[str, tuple[str, list[int]]]) -> Any:
    try:
        file: Any = safe_open(path, framework="pt", device="cpu")
        keys = set(file.keys())
        if keys != set(expected):
            odd = sorted(keys ^ set(expected))
            raise DamagedCheckpoint(f"{path} does not hold the tensors of the manifest; they differ in {odd[:5]}")
        for key, (dtype, shape) in expected.items():
            part = file.get_slice(key)
            if (part.get_dtype(), part.get_shape()) != (dtype, shape):
                raise DamagedCheckpoint(
                    f"{path}: tensor {key!r} is {part.get_dtype()} {part.get_shape()}, the manifest says "
                    f"{dtype} {shape}"
                )
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
    return file
