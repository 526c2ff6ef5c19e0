"""Which transformers weights a Megatron-Core parameter is made of, in both directions, for any tensor parallel size.

Megatron fuses queries, keys and values (group by group: the group's queries, its key, its value) and gate with up
projection, and pads the vocabulary to a multiple of the tensor parallel size. Layers of Transformer Engine hold the
norm before a projection in that projection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo.models.megatron.shape import ModelShape

Source = Mapping[str, Any]  # name -> a tensor, or what gives one when sliced as safetensors do: `x[a:b]`, `x[:, a:b]`


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a Megatron parameter on one rank, and where they are in a transformers weight."""

    name: str
    local: int  # first row here
    start: int  # first row there
    count: int
    column: int = 0  # first column there


class Weight(Protocol):
    """One Megatron parameter."""

    @property
    def names(self) -> tuple[str, ...]:
        """The transformers weights in it."""
        ...

    def local(self, source: Source, rank: int, size: int) -> Tensor:
        """The part of tensor parallel rank `rank` of `size`."""
        ...

    def whole(self, parts: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The transformers weights from the parts of all tensor parallel ranks."""
        ...

    def rows(self, count: int, rank: int, size: int) -> Iterator[Rows]:
        """Where the `count` rows of tensor parallel rank `rank` of `size` are; rows that only pad are left out."""
        ...


@dataclass(frozen=True)
class Replicated:
    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def local(self, source: Source, rank: int, size: int) -> Tensor:
        del rank, size
        return _tensor(source[self.name][:])

    def whole(self, parts: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        yield self.name, parts[0]

    def rows(self, count: int, rank: int, size: int) -> Iterator[Rows]:
        del rank, size
        yield Rows(self.name, 0, 0, count)


@dataclass(frozen=True)
class Vocabulary:
    """Rows of tokens, padded with zeros to a multiple of the size."""

    name: str
    vocabulary: int

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def local(self, source: Source, rank: int, size: int) -> Tensor:
        share = -(-self.vocabulary // size)
        given = _tensor(source[self.name][rank * share : min((rank + 1) * share, self.vocabulary)])
        if given.shape[0] == share:
            return given
        return torch.cat([given, given.new_zeros(share - given.shape[0], *given.shape[1:])])

    def whole(self, parts: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        yield self.name, _joined(parts, 0)[: self.vocabulary]

    def rows(self, count: int, rank: int, size: int) -> Iterator[Rows]:
        del size
        yield Rows(self.name, 0, rank * count, max(0, min(count, self.vocabulary - rank * count)))


@dataclass(frozen=True)
class Columns:
    """A row-parallel projection: each rank has some of the inputs."""

    name: str
    columns: int

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def local(self, source: Source, rank: int, size: int) -> Tensor:
        share = self.columns // size
        return _tensor(source[self.name][:, rank * share : (rank + 1) * share]).contiguous()

    def whole(self, parts: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        yield self.name, _joined(parts, 1)

    def rows(self, count: int, rank: int, size: int) -> Iterator[Rows]:
        yield Rows(self.name, 0, 0, count, column=rank * (self.columns // size))


@dataclass(frozen=True)
class GateUp:
    """Gate and up projection, one below the other on each rank."""

    gate: str
    up: str
    height: int  # of either

    @property
    def names(self) -> tuple[str, ...]:
        return self.gate, self.up

    def local(self, source: Source, rank: int, size: int) -> Tensor:
        share = self.height // size
        return torch.cat([_tensor(source[name][rank * share : (rank + 1) * share]) for name in self.names])

    def whole(self, parts: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        for name, halves in zip(self.names, zip(*(part.chunk(2) for part in parts), strict=True), strict=True):
            yield name, _joined(halves, 0)

    def rows(self, count: int, rank: int, size: int) -> Iterator[Rows]:
        share = self.height // size
        assert count == 2 * share, (count, share)
        for index, name in enumerate(self.names):
            yield Rows(name, index * share, rank * share, share)


@dataclass(frozen=True)
class QueryKeyValue:
    """Weight or bias of the fused attention input projection."""

    names: tuple[str, str, str]
    groups: int
    queries_per_group: int
    head_dim: int

    @property
    def _heights(self) -> tuple[int, int, int]:
        """Of one group in each of the three weights."""
        return self.queries_per_group * self.head_dim, self.head_dim, self.head_dim

    def local(self, source: Source, rank: int, size: int) -> Tensor:
        share = self.groups // size
        parts = [
            _grouped(_tensor(source[name][rank * share * rows : (rank + 1) * share * rows]), share)
            for name, rows in zip(self.names, self._heights, strict=True)
        ]
        return torch.cat(parts, 1).flatten(0, 1)

    def whole(self, parts: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        grouped = [_grouped(part, self.groups // len(parts)) for part in parts]
        for name, shares in zip(
            self.names, zip(*(torch.split(each, list(self._heights), 1) for each in grouped), strict=True), strict=True
        ):
            yield name, _joined([share.flatten(0, 1) for share in shares], 0)

    def rows(self, count: int, rank: int, size: int) -> Iterator[Rows]:
        share, local = self.groups // size, 0
        for group in range(rank * share, (rank + 1) * share):
            for name, height in zip(self.names, self._heights, strict=True):
                yield Rows(name, local, group * height, height)
                local += height
        assert local == count, (local, count)


EMBEDDING, OUTPUT, FINAL_NORM = (
    "embedding.word_embeddings.weight",
    "output_layer.weight",
    "decoder.final_layernorm.weight",
)


def embedding_weight(shape: ModelShape) -> Weight:
    """Of the first pipeline stage."""
    return Vocabulary("model.embed_tokens.weight", shape.vocab_size)


def output_weight(shape: ModelShape) -> Weight:
    """Of the last pipeline stage; where the weights are tied it is the embedding."""
    return embedding_weight(shape) if shape.tied else Vocabulary("lm_head.weight", shape.vocab_size)


def final_norm() -> Weight:
    return Replicated("model.norm.weight")


def layer_weights(shape: ModelShape, layer: int, *, fused_norms: bool) -> dict[str, Weight]:
    """The parameters of layer number `layer` of the whole model, by their name within the layer.

    `fused_norms`: the layers are Transformer Engine's.
    """
    prefix = f"model.layers.{layer}."
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."

    def qkv(kind: str) -> QueryKeyValue:
        q, k, v = (f"{attention}{each}_proj.{kind}" for each in "qkv")
        return QueryKeyValue(
            (q, k, v), shape.num_query_groups, shape.num_heads // shape.num_query_groups, shape.head_dim
        )

    first, second = (
        ("self_attention.linear_qkv.layer_norm_weight", "mlp.linear_fc1.layer_norm_weight")
        if fused_norms
        else ("input_layernorm.weight", "pre_mlp_layernorm.weight")
    )
    weights: dict[str, Weight] = {
        first: Replicated(f"{prefix}input_layernorm.weight"),
        "self_attention.linear_qkv.weight": qkv("weight"),
    }
    if shape.qkv_bias:
        weights["self_attention.linear_qkv.bias"] = qkv("bias")
    if shape.qk_norm:
        weights["self_attention.q_layernorm.weight"] = Replicated(f"{attention}q_norm.weight")
        weights["self_attention.k_layernorm.weight"] = Replicated(f"{attention}k_norm.weight")
    weights["self_attention.linear_proj.weight"] = Columns(
        f"{attention}o_proj.weight", shape.num_heads * shape.head_dim
    )
    weights[second] = Replicated(f"{prefix}post_attention_layernorm.weight")
    weights["mlp.linear_fc1.weight"] = GateUp(f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight", shape.ffn_hidden_size)
    weights["mlp.linear_fc2.weight"] = Columns(f"{mlp}down_proj.weight", shape.ffn_hidden_size)
    return weights


def weight_shape(shape: ModelShape, name: str) -> tuple[int, ...]:
    """Of a weight by its transformers name."""
    queries, keys = shape.num_heads * shape.head_dim, shape.num_query_groups * shape.head_dim
    rows = {
        "embed_tokens": shape.vocab_size, "lm_head": shape.vocab_size, "q_proj": queries, "k_proj": keys,
        "v_proj": keys, "gate_proj": shape.ffn_hidden_size, "up_proj": shape.ffn_hidden_size,
        "q_norm": shape.head_dim, "k_norm": shape.head_dim,
    }  # fmt: skip
    columns = {"o_proj": queries, "down_proj": shape.ffn_hidden_size}
    *_, module, kind = name.split(".")
    first = rows.get(module, shape.hidden_size)
    if kind == "bias" or module.endswith("norm"):
        return (first,)
    return first, columns.get(module, shape.hidden_size)


def _tensor(value: Any) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def _grouped(value: Tensor, groups: int) -> Tensor:
    """[groups, rows of a group, ...]."""
    return value.view(groups, -1, *value.shape[1:])


def _joined(parts: Sequence[Tensor], dimension: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dimension)
