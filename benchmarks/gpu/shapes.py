"""Models of public dimensions with random weights, made where they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from grpo.models.loading import load_model_config
from grpo.models.public import public_shape
from grpo.models.shipped import SHAPES


@dataclass(frozen=True)
class Shape:
    """Dimensions of a model. `layers` is fewer than the model has where one GPU cannot hold all."""

    title: str
    folder: Path
    layers: int

    def with_layers(self, layers: int) -> Shape:
        """The same with fewer layers, and a title that says so."""
        if layers == self.layers:
            return self
        return Shape(f"{self.title}, {layers} of its {self.layers} layers", self.folder, layers)

    def config(self) -> Any:
        """Its transformers config."""
        found = load_model_config(self.folder)
        found.num_hidden_layers = self.layers
        return found

    def build(self, device: str, *, seed: int = 0) -> PreTrainedModel:
        """Random float32 weights, made on `device`; the same seed gives the same weights there."""
        builder: Any = AutoModelForCausalLM
        torch.manual_seed(seed)
        with torch.device(device):
            model: PreTrainedModel = builder.from_config(self.config(), dtype=torch.float32)
        return model.eval()  # type: ignore[no-any-return,no-untyped-call]


def _public(title: str, name: str, layers: int) -> Shape:
    folder = public_shape(name)
    assert folder is not None, name
    return Shape(title, folder, layers)


SHAPES_BY_NAME = {
    "1b": _public("Llama 3.2 1B", "meta-llama/Llama-3.2-1B", 16),
    "8b": _public("Llama 3.1 8B", "meta-llama/Llama-3.1-8B", 32),
    "tiny": Shape("tiny-llama", SHAPES / "tiny-llama", 2),
}
