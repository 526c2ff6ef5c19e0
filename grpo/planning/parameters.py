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
_LAYER = re.compile(r"^(.*\.layers\.)(\d+)(\..*)$")
_SUPPORTED = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Model:
    """A model to plan for: its parameters' shapes under Hugging Face names, tied ones once."""

    name: str
    dimensions: Dimensions
    layer: Shapes  # of one layer; the others are like it
    outer: Shapes  # embedding, final norm, output layer

    @property
    def parameters(self) -> int:
        return self.dimensions.layers * _elements(self.layer, 1) + _elements(self.outer, 1)


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
    return model_of(name, config)


def model_of(name: str, config: Any) -> Model:
    """The parameters of a transformers config."""
    import torch
    from transformers import AutoModelForCausalLM

    build: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = build.from_config(config)
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    outer = {}
    for full, each in model.named_parameters():
        found = _LAYER.match(full)
        if found is None:
            outer[full] = tuple(each.shape)
        else:
            layers.setdefault(found[2], {})[f"{found[1]}*{found[3]}"] = tuple(each.shape)
    first, *others = layers.values()
    assert all(other == first for other in others), "layers differ"
    return Model(name, Dimensions.of(config), first, outer)


def tensor_shape(name: str, shape: tuple[int, ...], tensor: int) -> tuple[int, ...]:
    """The largest piece that one of `tensor` ranks has of a parameter."""
    for pattern, dimension in _DIVIDED:
        if pattern.search(name):
            return tuple(-(-size // tensor) if at == dimension else size for at, size in enumerate(shape))
    return shape


def layer_elements(model: Model, tensor: int) -> int:
    """Elements of one layer on one tensor parallel rank."""
    return _elements(model.layer, tensor)


def outer_elements(model: Model, tensor: int) -> int:
    """Elements outside the layers on one tensor parallel rank: embedding, final norm, output layer."""
    return _elements(model.outer, tensor)


def tensor_elements(model: Model, tensor: int) -> int:
    """Elements of the whole model on one tensor parallel rank."""
    return outer_elements(model, tensor) + model.dimensions.layers * layer_elements(model, tensor)


def sharded_elements(model: Model, tensor: int, data: int) -> int:
    """Elements on the fullest rank where data parallel ranks share rows (FSDP2: each parameter's first dimension)."""
    return _sharded(model.outer, tensor, data) + model.dimensions.layers * _sharded(model.layer, tensor, data)


def stage_elements(model: Model, parallel: Parallel, stage: int) -> int:
    """Elements of pipeline stage `stage` on one tensor parallel rank.

    It has its share of the layers; the first stage has the embedding, the last one norm and output layer. A tied output
    layer is a copy of the embedding on the last stage, where that is another one.
    """
    last, tied = stage == parallel.pipeline - 1, model.dimensions.tied
    outer = {
        name: shape
        for name, shape in model.outer.items()
        if (stage == 0 or (last and tied) if "embed_tokens" in name else last)
    }
    layers = model.dimensions.layers // parallel.pipeline
    return _elements(outer, parallel.tensor) + layers * layer_elements(model, parallel.tensor)


def _elements(shapes: Shapes, tensor: int) -> int:
    return sum(prod(tensor_shape(name, shape, tensor)) for name, shape in shapes.items())


def _sharded(shapes: Shapes, tensor: int, data: int) -> int:
    total = 0
    for name, shape in shapes.items():
        rows, *rest = tensor_shape(name, shape, tensor)
        total += -(-rows // data) * prod(rest)
    return total
