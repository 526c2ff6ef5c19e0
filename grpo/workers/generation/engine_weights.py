"""The weights that a transformers engine owns: replaced all at once or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from grpo.workers.generation.expected_weights import ExpectedWeights


class EngineWeights:
    """Parameters of a module, some of them stored as slices of one tensor so that a decoder can use them fused.

    The module's parameters are views of the blocks: nothing is held twice.
    """

    def __init__(self, model: nn.Module, vocabulary: int, fused: Sequence[Sequence[str]] = ()) -> None:
        """Args: `fused` names parameters to be stored one after the other along their first dimension."""
        self._parameters = dict(model.named_parameters())  # a tied parameter appears once
        self._expected = ExpectedWeights.of_module(model, vocabulary)
        grouped = {name for group in fused for name in group}
        self._groups = [tuple(group) for group in fused]
        self._groups += [(name,) for name in self._parameters if name not in grouped]
        self._blocks: dict[tuple[str, ...], Tensor] = {}
        self.replace((name, parameter.detach()) for name, parameter in self._parameters.items())

    def block(self, *names: str) -> Tensor:
        """The tensor that holds these parameters one after the other: a group given as `fused`, or one name."""
        return self._blocks[tuple(self._expected.aliases.get(name, name) for name in names)]

    def blocks(self) -> list[Tensor]:
        """All that is held, without copies."""
        return list(self._blocks.values())

    def replace(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take a whole set of weights. On an error the old ones stay.

        Each tensor is copied as it arrives, so a sender may reuse its buffer; both sets exist until the last is here.

        Raises:
            GenerationError: a name is unknown, arrives twice or is missing, or a shape differs.
        """
        blocks, slices = self._allocate()
        for name, tensor in self._expected.checked(weights):
            slices[name].copy_(tensor.detach())
        for name, tensor in slices.items():
            self._parameters[name].data = tensor
        self._blocks = blocks

    def _allocate(self) -> tuple[dict[tuple[str, ...], Tensor], dict[str, Tensor]]:
        blocks: dict[tuple[str, ...], Tensor] = {}
        slices: dict[str, Tensor] = {}
        for group in self._groups:
            members = [self._parameters[name] for name in group]
            rows = [member.shape[0] for member in members]
            first = members[0]
            block = torch.empty((sum(rows), *first.shape[1:]), dtype=first.dtype, device=first.device)
            blocks[group] = block
            slices.update(zip(group, torch.split(block, rows), strict=True))
        return blocks, slices
