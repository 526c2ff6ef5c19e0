"""Dimensions of public models, shipped so that planning needs no hub: a config.json each, no tokenizer and no weights.

They are kept apart from `grpo.models.shipped`: none of them can be trained from here. A public config.json is copied
here without what has no bearing on sizes.
"""

from __future__ import annotations

from pathlib import Path

PUBLIC_SHAPES = Path(__file__).parent / "public_shapes"

# Models of the same dimensions under other names.
_SAME_SHAPE = {
    "meta-llama/Llama-3.1-8B": ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
    "meta-llama/Llama-3.1-70B": ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
    "meta-llama/Llama-3.2-1B": ("meta-llama/Llama-3.2-1B-Instruct",),
    "Qwen/Qwen2.5-1.5B": ("Qwen/Qwen2.5-1.5B-Instruct",),
    "Qwen/Qwen2.5-7B": ("Qwen/Qwen2.5-7B-Instruct",),
    "Qwen/Qwen2.5-32B": ("Qwen/Qwen2.5-32B-Instruct",),
    "Qwen/Qwen3-8B": ("Qwen/Qwen3-8B-Base",),
    "Qwen/Qwen3-32B": (),
}
_SHAPE_OF = {name: shape for shape, others in _SAME_SHAPE.items() for name in (shape, *others)}


def public_names() -> list[str]:
    """Hub ids whose dimensions are known without a network."""
    return sorted(_SHAPE_OF)


def public_shape(name: str) -> Path | None:
    """The folder that holds the config.json of a public model's dimensions, or None if it is not among them."""
    shape = _SHAPE_OF.get(name)
    return None if shape is None else PUBLIC_SHAPES / shape.replace("/", "--")
