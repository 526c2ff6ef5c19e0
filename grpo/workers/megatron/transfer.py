"""Weights of a stage from and to transformers names, one parameter at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from grpo.errors import GrpoError, ModelError
from grpo.models.megatron.gpt import PolicyGPT
from grpo.models.megatron.names import (
    EMBEDDING,
    FINAL_NORM,
    OUTPUT,
    Replicated,
    Rows,
    Source,
    Weight,
    embedding_weight,
    final_norm,
    layer_weights,
    output_weight,
    weight_shape,
)
from grpo.models.megatron.shape import ModelShape
from grpo.models.megatron.weights import shape_of
from grpo.workers.megatron.parallel import Place, stage_layers


class StageWeights:
    """Which parameter of this rank is which part of which transformers weights."""

    def __init__(self, model: PolicyGPT, shape: ModelShape, place: Place, *, fused_norms: bool) -> None:
        self._place, self._shape, self._fused_norms = place, shape, fused_norms
        self.weights = self._of_stage(place.pipeline_rank)
        self._parameters = dict(model.named_parameters())
        odd = sorted(set(self.weights) ^ set(self._parameters))
        assert not odd, f"parameters that have no counterpart: {odd}"
        for name, parameter in self._parameters.items():
            _mark(parameter, self.weights[name])

    def _of_stage(self, stage: int) -> dict[str, Weight]:
        stages, shape = self._place.sizes.pipeline, self._shape
        weights: dict[str, Weight] = {}
        if stage == 0:
            weights[EMBEDDING] = embedding_weight(shape)
        for local, layer in enumerate(stage_layers(shape.num_layers, stage, stages)):
            for name, weight in layer_weights(shape, layer, fused_norms=self._fused_norms).items():
                weights[f"decoder.layers.{local}.{name}"] = weight
        if stage == stages - 1:
            weights[FINAL_NORM] = final_norm()
            if stages > 1 or not shape.tied:
                weights[OUTPUT] = output_weight(shape)
        return weights

    @property
    def place(self) -> Place:
        return self._place

    def rows(self, name: str) -> Iterator[Rows]:
        """Where the rows of a parameter of this rank are in transformers weights."""
        count = self._parameters[name].shape[0]
        return self.weights[name].rows(count, self._place.tensor_rank, self._place.sizes.tensor)

    def shape(self, hf_name: str) -> tuple[int, ...]:
        """Of a whole weight by its transformers name."""
        return weight_shape(self._shape, hf_name)

    def is_copy(self, name: str) -> bool:
        """Whether a parameter is the last stage's copy of the embedding, which the first stage has."""
        return name == OUTPUT and self._shape.tied

    def names_of_model(self) -> list[str]:
        """Transformers names of all weights, tied ones once."""
        stages = (self._of_stage(stage) for stage in range(self._place.sizes.pipeline))
        weights = (weight for stage in stages for name, weight in stage.items() if not self.is_copy(name))
        return [name for weight in weights for name in weight.names]

    def read(self, name: str, source: Source) -> Tensor:
        """The part of a parameter that this rank has, in the dtype of `source`.

        Raises:
            ModelError: the weights are of another shape than the model.
        """
        self.check_shapes(name, source, ModelError)
        return self.weights[name].local(source, self._place.tensor_rank, self._place.sizes.tensor)

    def check_shapes(self, name: str, source: Source, error: type[GrpoError]) -> None:
        """Raise `error` if a weight that a parameter is made of has another shape than in this model."""
        for hf_name in self.weights[name].names:
            given, expected = shape_of(source[hf_name]), weight_shape(self._shape, hf_name)
            if given != expected:
                raise error(
                    f"weights of another model: {hf_name} has shape {list(given)} there and {list(expected)} here"
                )

    @torch.no_grad()
    def load(self, source: Source) -> None:
        """Fill the parameters, reading no more than this rank's parts."""
        for name, parameter in self._parameters.items():
            parameter.copy_(self.read(name, source))

    @torch.no_grad()
    def export(self, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Every weight of the whole model under its transformers name, tied ones once. All ranks must take all."""
        place, stages = self._place, self._place.sizes.pipeline
        for stage in range(stages):
            for name, weight in self._of_stage(stage).items():
                if self.is_copy(name):
                    continue
                if stage == place.pipeline_rank:
                    yield from self._share(weight, self._whole(name, weight), stage)
                else:
                    yield from self._share(weight, None, stage, device=device, dtype=dtype)

    def _whole(self, name: str, weight: Weight) -> list[tuple[str, Tensor]]:
        own = self._parameters[name].detach()
        if isinstance(weight, Replicated) or self._place.sizes.tensor == 1:
            return list(weight.whole([own]))
        parts = [torch.empty_like(own) for _ in range(self._place.sizes.tensor)]
        dist.all_gather(parts, own.contiguous(), group=self._place.tensor_group)
        return list(weight.whole(parts))

    def _share(
        self,
        weight: Weight,
        held: list[tuple[str, Tensor]] | None,
        stage: int,
        **made: Any,
    ) -> Iterator[tuple[str, Tensor]]:
        """From the stage that has it to the others."""
        group = self._place.pipeline_group
        for index, name in enumerate(weight.names):
            if self._place.sizes.pipeline == 1:
                assert held is not None
                yield name, held[index][1]
                continue
            tensor = (
                torch.empty(weight_shape(self._shape, name), **made) if held is None else held[index][1].contiguous()
            )
            dist.broadcast(tensor, group_src=stage, group=group)
            yield name, tensor


def _mark(parameter: torch.nn.Parameter, weight: Weight) -> None:
    """Say that tensor parallel ranks have different parts: Megatron says so only when it initialises weights itself.

    Without it a norm would count rank 0's part alone.
    """
    parameter.tensor_model_parallel = not isinstance(weight, Replicated)  # type: ignore[attr-defined]
