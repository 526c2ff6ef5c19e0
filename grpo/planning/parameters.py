"""The parameters of a model, from transformers' own code on the meta device, and what one rank holds of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from grpo.errors import ModelError
from grpo.hub.store import local_folder, stored_model
from grpo.models.dimensions import Dimensions
from grpo.models.public import public_names, public_shape
from grpo.models.shipped import shipped_folder, shipped_names
from grpo.planning.parallel import Parallel

Shapes = Mapping[str, tuple[int, ...]]

# The dimension that tensor parallelism divides; what is not named here is replicated.
_DIVIDED = (
    (re.compile(r"(embed_tokens|lm_head)\.weight$"), 0),
    (re.compile(r"(q_proj|k_proj|v_proj|gate_proj|up_proj)\.(weight|bias)$"), 0),
    (re.compile(r"(o_proj|down_proj)\.weight$"), 1),
)
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_SUPPORTED = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Model:
    """A model to plan for."""

    name: str
    dimensions: Dimensions
    shapes: Shapes  # of every parameter, tied ones once, under Hugging Face names

    @property
    def parameters(self) -> int:
        return sum(map(prod, self.shapes.values()))


def model_folder(name: str, revision: str | None = None) -> Path:
    """Where the config.json of a model is: what training would load, else the shipped dimensions of a public model.

    Raises:
        ModelError: neither is on this machine.
    """
    found = local_folder(name) or shipped_folder(name) or stored_model(name, revision) or public_shape(name)
    if found is None:
        raise ModelError(
            f"policy.model_name={name}: no folder of that name and nothing stored from the hub; dimensions ship of "
            f"{', '.join([*public_names(), *shipped_names()])}; others: grpo fetch RECIPE policy.model_name={name}"
        )
    return found


def load_model_shapes(name: str, revision: str | None = None) -> Model:
    """Build the model without memory for its weights and read their shapes.

    Raises:
        ModelError: no config.json, or an architecture that cannot be trained.
    """
    from grpo.models.loading import load_model_config

    config = load_model_config(model_folder(name, revision))
    if config.model_type not in _SUPPORTED:
        raise ModelError(
            f"policy.model_name={name}: model_type {config.model_type!r}; plans cover {', '.join(_SUPPORTED)}"
        )
    return Model(name, Dimensions.of(config), parameter_shapes(config))


def parameter_shapes(config: Any) -> Shapes:
    """Name -> shape of every parameter of a transformers config, tied ones once."""
    import torch
    from transformers import AutoModelForCausalLM

    build: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = build.from_config(config)
    return {name: tuple(each.shape) for name, each in model.named_parameters()}


def stage_shapes(shapes: Shapes, parallel: Parallel, stage: int, layers: int) -> Shapes:
    """What pipeline stage `stage` holds: its share of the layers, the embedding first, norm and output layer last.

    A tied output layer is a copy of the embedding on the last stage, where that is another one.
    """
    per_stage, last = layers // parallel.pipeline, parallel.pipeline - 1
    held = {}
    for name, shape in shapes.items():
        layer = _LAYER.search(name)
        if layer is not None:
            own = int(layer[1]) // per_stage == stage
        elif "embed_tokens" in name:
            own = stage == 0 or (stage == last and not any("lm_head" in each for each in shapes))
        else:
            own = stage == last
        if own:
            held[name] = shape
    return held


def tensor_shape(name: str, shape: tuple[int, ...], tensor: int) -> tuple[int, ...]:
    """The largest piece that one of `tensor` ranks has of a parameter."""
    for pattern, dimension in _DIVIDED:
        if pattern.search(name):
            return tuple(-(-size // tensor) if at == dimension else size for at, size in enumerate(shape))
    return shape


def tensor_elements(shapes: Shapes, tensor: int) -> int:
    """Elements of all these parameters on one tensor parallel rank."""
    return sum(prod(tensor_shape(name, shape, tensor)) for name, shape in shapes.items())


def sharded_elements(shapes: Shapes, tensor: int, data: int) -> int:
    """Elements on the fullest rank where data parallel ranks share rows (FSDP2: each parameter's first dimension)."""
    total = 0
    for name, shape in shapes.items():
        rows, *rest = tensor_shape(name, shape, tensor)
        total += -(-rows // data) * prod(rest)
    return total


def layer_elements(shapes: Shapes, tensor: int) -> int:
    """Elements of one layer on one tensor parallel rank."""
    return tensor_elements({name: shape for name, shape in shapes.items() if ".layers.0." in name}, tensor)


def outer_elements(shapes: Shapes, tensor: int) -> int:
    """Elements outside the layers on one tensor parallel rank: embedding, final norm, output layer."""
    return tensor_elements({name: shape for name, shape in shapes.items() if ".layers." not in name}, tensor)
