"""Names and shapes that a weight update must bring, known before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from grpo.errors import GenerationError

_KEPT = "; the engine keeps its old weights"
_MIXED = "; the engine has some of the new weights and generates nothing until an update succeeds"


@dataclass(frozen=True)
class ExpectedWeights:
    """The Hugging Face weights of a model; `aliases` are second names of tied ones, which are not sent."""

    shapes: Mapping[str, tuple[int, ...]]
    aliases: Mapping[str, str]
    vocabulary: int  # rows of the embedding

    @classmethod
    def of_module(cls, model: nn.Module, vocabulary: int) -> ExpectedWeights:
        """What `model` has."""
        parameters = dict(model.named_parameters())
        first_names = {id(parameter): name for name, parameter in parameters.items()}
        every = model.named_parameters(remove_duplicate=False)
        return cls(
            shapes={name: tuple(parameter.shape) for name, parameter in parameters.items()},
            aliases={name: first_names[id(each)] for name, each in every if name not in parameters},
            vocabulary=vocabulary,
        )

    @classmethod
    def of_folder(cls, folder: Path) -> ExpectedWeights:
        """What the model of a folder's config.json has; no weights are read."""
        from transformers import AutoModelForCausalLM

        from grpo.models.loading import load_model_config

        config = load_model_config(folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        return cls.of_module(model, config.vocab_size)

    def checked(self, weights: Iterable[tuple[str, Tensor]], *, in_place: bool = False) -> Iterator[tuple[str, Tensor]]:
        """The weights one by one as they arrive, and an error as soon as they cannot be the whole set.

        Args:
            weights: name and tensor.
            in_place: they replace the old ones as they arrive; errors say what that leaves.

        Raises:
            GenerationError: a name is unknown, arrives twice or is missing at the end, or a shape differs.
        """
        waiting = set(self.shapes)
        left = _MIXED if in_place else _KEPT
        for name, tensor in weights:
            self._check(name, tensor, waiting, left)
            waiting.remove(name)
            yield name, tensor
        if waiting:
            raise GenerationError(
                f"weight update: {len(waiting)} of {len(self.shapes)} weights are missing, the first is "
                f"{min(waiting)}{left}"
            )

    def _check(self, name: str, tensor: Tensor, waiting: set[str], left: str) -> None:
        if name in self.aliases:
            raise GenerationError(f"weight update: {name} is tied to {self.aliases[name]}, which alone is sent{left}")
        if name not in self.shapes:
            raise GenerationError(f"weight update: unknown weight {name}{left}")
        if name not in waiting:
            raise GenerationError(f"weight update: {name} arrived twice{left}")
        if tuple(tensor.shape) != self.shapes[name]:
            raise GenerationError(
                f"weight update: {name} has shape {tuple(tensor.shape)}, the engine's is {self.shapes[name]}{left}"
            )
