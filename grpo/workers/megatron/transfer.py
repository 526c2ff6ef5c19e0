"""Weights of a stage from and to transformers names, one parameter at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from grpo.errors import ModelError
from grpo.models.megatron.gpt import PolicyGPT
from grpo.models.megatron.names import (
    EMBEDDING,
    FINAL_NORM,
    OUTPUT,
    Replicated,
    Source,
    Weight,
    embedding_weight,
    final_norm,
    layer_weights,
    output_weight,
)
from grpo.models.megatron.shape import ModelShape
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

    def read(self, name: str, source: Source) -> Tensor:
        """This rank's part of a parameter, in the dtype of `source`.

        Raises:
            ModelError: the weights are of another shape than the model.
        """
        sizes = self._place.sizes
        value = self.weights[name].local(source, self._place.tensor_rank, sizes.tensor)
        expected = self._parameters[name].shape
        if value.shape != expected:
            raise ModelError(
                f"{', '.join(self.weights[name].names)}: {list(value.shape)} of it is for tensor parallel rank "
                f"{self._place.tensor_rank}, but config.json makes that {list(expected)}"
            )
        return value

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
                if name == OUTPUT and self._shape.tied:
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
            tensor = torch.empty(self._whole_shape(name), **made) if held is None else held[index][1].contiguous()
            dist.broadcast(tensor, group_src=stage, group=group)
            yield name, tensor

    def _whole_shape(self, name: str) -> tuple[int, ...]:
        shape = self._shape
        queries, keys = shape.num_heads * shape.head_dim, shape.num_query_groups * shape.head_dim
        rows = {
            "embed_tokens": shape.vocab_size, "lm_head": shape.vocab_size, "q_proj": queries, "k_proj": keys,
            "v_proj": keys, "o_proj": shape.hidden_size, "gate_proj": shape.ffn_hidden_size,
            "up_proj": shape.ffn_hidden_size, "down_proj": shape.hidden_size, "q_norm": shape.head_dim,
            "k_norm": shape.head_dim,
        }  # fmt: skip
        columns = {"o_proj": queries, "down_proj": shape.ffn_hidden_size}
        *_, module, kind = name.split(".")
        first = rows.get(module, shape.hidden_size)
        if kind == "bias" or module.endswith("norm"):
            return (first,)
        return first, columns.get(module, shape.hidden_size)


def _mark(parameter: torch.nn.Parameter, weight: Weight) -> None:
    """Say that tensor parallel ranks have different parts: Megatron says so only when it initialises weights itself.

    Without it a norm would count rank 0's part alone.
    """
    parameter.tensor_model_parallel = not isinstance(weight, Replicated)  # type: ignore[attr-defined]
