"""Model folders that ship with the package: a config.json and a tokenizer, no weights."""

from __future__ import annotations

import shutil
from pathlib import Path

SHAPES = Path(__file__).parent / "shapes"


def shipped_names() -> list[str]:
    """Names that `policy.model_name` accepts without any download."""
    return sorted(folder.name for folder in SHAPES.iterdir() if (folder / "config.json").is_file())


def shipped_folder(name: str) -> Path | None:
    """The folder of a shipped model, or None if none has this name."""
    return SHAPES / name if name in shipped_names() else None


def materialise(name: str, folder: Path, *, seed: int = 0, dtype: str = "float32") -> Path:
    """Write a complete Hugging Face folder of a shipped shape with random weights.

    Args:
        name: one of `shipped_names()`.
        folder: created if need be; returned.
        seed: of the weights; the same seed gives the same weights as `policy.random_weights` with that `grpo.seed`.
        dtype: torch name of the stored dtype.
    """
    import torch

    from grpo.models.loading import load_model

    source = SHAPES / name
    folder.mkdir(parents=True, exist_ok=True)
    model = load_model(source, dtype=getattr(torch, dtype), random_weights=True, seed=seed)
    model.save_pretrained(folder)
    for file in source.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            shutil.copy(file, folder)
    return folder
