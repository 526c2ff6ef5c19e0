"""Bytes that a forward pass keeps for the backward pass, counted from the operations of a layer.

Per token and layer, for compute of c bytes an element (2 in bfloat16), h the hidden size, q and k the widths of all
query and of all key heads, f the MLP's; norms, rotary embeddings and the MLP's activation are one kernel each:

- each of two RMSNorms: its input and output, and the root's inverse in float32: 2c h + 4
- attention: query, key, value and output, c (2q + 2k), and a float32 log-sum for each head
- the MLP: gate, up and activation times up, 3c f
- where heads are normalised (Qwen 3): queries and keys before it and a root for each head, c (q + k) + 4

Tensor parallelism divides the heads and the MLP. Sequence parallelism divides the norms as well; transformers'
projections keep their gathered inputs, Megatron's gather them again. With activation checkpointing a layer keeps its
input, and one layer at a time is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo.models.dimensions import Dimensions
from grpo.planning.parallel import Parallel

FLOAT32 = 4


@dataclass(frozen=True)
class Activations:
    """Bytes on one rank for one micro-batch."""

    kept: float  # for the backward pass, of all layers of a stage
    transient: float  # of the layer that is at work, forward or backward


def layer_bytes_per_token(dimensions: Dimensions, parallel: Parallel, compute_bytes: int) -> float:
    """Kept by one layer without checkpointing, on one rank."""
    c, h, share, tensor = compute_bytes, dimensions.hidden, parallel.sequence_share, parallel.tensor
    query, keys = dimensions.query_width / tensor, dimensions.kv_width / tensor
    heads = dimensions.heads / tensor
    attention = c * (2 * query + 2 * keys) + FLOAT32 * heads
    mlp = 3 * c * dimensions.intermediate / tensor
    own, gathered = c * h + FLOAT32, c * h  # a norm's input and root, and the next projections' input
    norms = 2 * (own + gathered) / share if parallel.backend == "megatron" else 2 * (own / share + gathered)
    if dimensions.norms_heads:
        attention += c * (query + keys) + FLOAT32 * (heads + dimensions.kv_heads / tensor)
    return norms + attention + mlp


def layer_gradient_bytes_per_token(dimensions: Dimensions, parallel: Parallel, compute_bytes: int) -> float:
    """Alive at once while one layer's backward pass is at work: three MLP-wide gradients and the layer's own."""
    widest = 3 * compute_bytes * dimensions.intermediate / parallel.tensor
    return widest + compute_bytes * dimensions.hidden


def training_activations(
    dimensions: Dimensions,
    parallel: Parallel,
    tokens: int,
    *,
    layers: int,
    in_flight: int,
    compute_bytes: int,
) -> Activations:
    """Of `in_flight` micro-batches of `tokens` tokens on a stage of `layers` layers.

    Besides the layers, a micro-batch keeps the last norm's input and the states that log-probs are made of.
    """
    per_layer = layer_bytes_per_token(dimensions, parallel, compute_bytes)
    outer = 2 * compute_bytes * dimensions.hidden
    gradients = layer_gradient_bytes_per_token(dimensions, parallel, compute_bytes)
    if parallel.recompute:
        inputs = compute_bytes * dimensions.hidden * layers / parallel.sequence_share
        return Activations(tokens * (in_flight * (inputs + outer)), tokens * (per_layer + gradients))
    return Activations(tokens * in_flight * (per_layer * layers + outer), tokens * gradients)


def scoring_activations(dimensions: Dimensions, parallel: Parallel, tokens: int, compute_bytes: int) -> float:
    """Of a forward pass without gradients: one layer's intermediates and the states for log-probs."""
    wide = 3 * compute_bytes * dimensions.intermediate / parallel.tensor
    return tokens * (wide + 3 * compute_bytes * dimensions.hidden)


def logit_chunk_bytes(dimensions: Dimensions, parallel: Parallel, chunk: int, compute_bytes: int) -> float:
    """Logits of one chunk of tokens in float32, and in training their gradient in the compute dtype."""
    return chunk * dimensions.vocab / parallel.tensor * (FLOAT32 + compute_bytes)


def head_gradient_bytes(dimensions: Dimensions, parallel: Parallel) -> float:
    """The output weight's gradient, which the chunks are added into in float32."""
    return FLOAT32 * dimensions.head_weights / parallel.tensor
