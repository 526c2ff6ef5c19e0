"""Floating point operations of a step, written out. A multiply-add counts as two.

Matrix products of one token in one layer: 2 x (weights of the layer). Query, key, value and output projections have
`hidden x (2 query_width + 2 kv_width)` weights, the gated MLP `3 x hidden x intermediate`. The output layer makes
2 x hidden x vocab for each token whose log-prob is wanted. Looking up an embedding takes none.

Attention of a sequence of s tokens in one layer: scores and weighted values are two products of [s, d] with [d, s] for
each query head, 4 s^2 query_width in all. Causal attention needs half of the square, and half is what counts:
2 s^2 query_width. Grouped keys and values change bytes, not operations.

The backward pass of a product is two products, so training counts three times the forward pass. What activation
checkpointing, or attention's own backward kernel, computes again is work but not part of the model's FLOPs (PaLM,
arXiv 2204.02311, appendix B): `recompute_flops` has the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.models.dimensions import Dimensions


@dataclass(frozen=True)
class Flops:
    """Operations by kind."""

    layers: float = 0.0  # projections and MLP
    attention: float = 0.0  # the causal half
    head: float = 0.0

    @property
    def total(self) -> float:
        return self.layers + self.attention + self.head

    def __add__(self, other: Flops) -> Flops:
        return Flops(self.layers + other.layers, self.attention + other.attention, self.head + other.head)

    def scaled(self, factor: float) -> Flops:
        """All of it times `factor`."""
        return Flops(self.layers * factor, self.attention * factor, self.head * factor)


def forward_flops(dimensions: Dimensions, lengths: Sequence[int], predicted_tokens: float) -> Flops:
    """One forward pass over sequences of these lengths (tokens), of which `predicted_tokens` get a log-prob."""
    squares = float(sum(length * length for length in lengths))
    return Flops(
        layers=2.0 * sum(lengths) * dimensions.layers * dimensions.layer_weights,
        attention=2.0 * squares * dimensions.query_width * dimensions.layers,
        head=2.0 * predicted_tokens * dimensions.head_weights,
    )


def training_flops(dimensions: Dimensions, lengths: Sequence[int], predicted_tokens: float) -> Flops:
    """Forward and backward of a training pass."""
    return forward_flops(dimensions, lengths, predicted_tokens).scaled(3)


def recompute_flops(dimensions: Dimensions, lengths: Sequence[int]) -> Flops:
    """What checkpointing every layer adds: its forward pass once more. The output layer is not checkpointed."""
    return forward_flops(dimensions, lengths, 0)


def head_recompute_flops(dimensions: Dimensions, predicted_tokens: float) -> Flops:
    """What making the logits chunk by chunk again in the backward pass adds."""
    return forward_flops(dimensions, (), predicted_tokens)
