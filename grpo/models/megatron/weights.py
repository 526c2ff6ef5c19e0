"""Where weights are read from: safetensors slice by slice, so that no rank holds more than it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from grpo.errors import ModelError

NARROW = ("BF16", "F16")


class SafetensorsFolder(Mapping[str, Any]):
    """Weight names of a folder's safetensors files -> slices that read from disk what is asked of them.

    Raises:
        ModelError: there is no such file, or one cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise ModelError(f"{folder}: no *.safetensors weights here")
        for path in paths:
            try:
                file = safe_open(path, framework="pt", device="cpu")
                names: list[str] = file.keys()  # type: ignore[no-untyped-call]
                self._files |= dict.fromkeys(names, file)
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{path}: not a safetensors file that can be read: {error}") from error

    def __getitem__(self, name: str) -> Any:
        if name not in self._files:
            raise ModelError(f"{self._folder}: no weight {name} in the safetensors")
        return self._files[name].get_slice(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def dtype_is_wide(value: Any) -> bool:
    """Whether a tensor or slice holds more than 16 bits a number."""
    if isinstance(value, torch.Tensor):
        return value.dtype in {torch.float32, torch.float64}
    return value.get_dtype() not in NARROW


def shape_of(value: Any) -> tuple[int, ...]:
    """Of a tensor or slice."""
    return tuple(value.shape if isinstance(value, torch.Tensor) else value.get_shape())
