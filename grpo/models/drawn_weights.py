"""Random weights that are drawn where they are to lie: each from a seed of its own, when it is asked for.

What `load_model` draws on the CPU comes from one generator, in order: whoever needs a part draws all of it. Here a rank
draws the parameters that it has a part of, one at a time and on its device. The distributions are those of the model's
own construction. A seed gives the same numbers in every layout and on both backends, though not the CPU's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo.models.sharded_loading import Draw, Reader, recorded_draws, restore_buffers, shape_of_model

_OVERWRITES = {torch.ops.aten.normal_, torch.ops.aten.uniform_, torch.ops.aten.fill_, torch.ops.aten.zero_}


class DrawnWeights(Mapping[str, Tensor]):
    """Whole float32 weights by their Hugging Face names, tied ones once. Each look-up draws anew, the same numbers."""

    def __init__(self, folder: Path, seed: int, device: torch.device) -> None:
        """Raises ModelError if the folder's config.json is missing or cannot be used."""
        self._seed, self._device = seed, device
        model, draws = recorded_draws(folder)
        self._parameters = dict(model.named_parameters())
        self._draws: dict[str, list[Draw]] = {name: [] for name in self._parameters}
        for name, draw in draws:
            if draw.function.overloadpacket in _OVERWRITES and draw.target.numel() == draw.size_of_whole:
                self._draws[name] = []
            self._draws[name].append(draw)

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        parameter = self._parameters[name]
        if not parameter.is_meta:  # made of ones, not of draws
            return parameter.detach().to(self._device)
        generator = torch.Generator(self._device).manual_seed(_seed_of(self._seed, name))
        whole = torch.empty(parameter.numel(), device=self._device)
        for draw in self._draws[name]:
            draw.apply(whole, generator)
        return whole.view(parameter.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def readers(self) -> Iterator[tuple[str, Reader]]:
        """As `stored_weights` gives them; parts are on the device."""
        for name in self:
            yield name, lambda part, name=name: self[name][part]  # type: ignore[misc]


def drawn_model(folder: Path, seed: int, device: torch.device) -> PreTrainedModel:
    """The model of a folder in float32 and evaluation mode on a device, with `DrawnWeights`.

    Raises:
        ModelError: config.json is missing or cannot be used.
    """
    model = shape_of_model(folder)
    model.to_empty(device=device)
    if model.config.tie_word_embeddings:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight  # type: ignore[no-untyped-call]
    restore_buffers(model, device)
    weights = DrawnWeights(folder, seed, device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
