"""Bytes that a forward pass keeps for the backward pass, counted from the operations of a layer.

Per token and layer, for compute of c bytes an element (2 in bfloat16), h the hidden size, q and k the widths of all
query and of all key heads, f the MLP's:

- each of two RMSNorms. In transformers: its input in float32, the root (4 bytes), the rounded output before the weight
  and the product, which is the next projection's input: (4 + 2c) h + 4. In Megatron, one kernel: 2c h + 4
- attention: query, key, value and output, c (2q + 2k), and a float32 log-sum for each head; where sequences are packed,
  keys and values are repeated for every query head: 4c q
- the MLP: gate, its activation, up and their product, 4c f
- where heads are normalised (Qwen 3): in transformers (4 + c) (q + k) and a root for each head, in Megatron c (q + k)

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


def layer_bytes_per_token(
    dimensions: Dimensions, parallel: Parallel, compute_bytes: int, *, packed: bool = False
) -> float:
    """Kept by one layer without checkpointing, on one rank."""
    c, h, share, tensor = compute_bytes, dimensions.hidden, parallel.sequence_share, parallel.tensor
    query, keys = dimensions.query_width / tensor, dimensions.kv_width / tensor
    heads = dimensions.heads / tensor
    attention = c * (2 * query + 2 * (query if packed else keys)) + 4 * heads
    mlp = 4 * c * dimensions.intermediate / tensor
    if parallel.backend == "megatron":
        norms = 2 * (2 * c * h + 4) / share
        of_heads = c * (query + keys)
    else:
        norms = 2 * ((FLOAT32 * h + 4 + c * h) / share + c * h)
        of_heads = (FLOAT32 + c) * (query + keys)
    if dimensions.norms_heads:
        attention += of_heads + 4 * (heads + dimensions.kv_heads / tensor)
    return norms + attention + mlp


def layer_gradient_bytes_per_token(dimensions: Dimensions, parallel: Parallel, compute_bytes: int) -> float:
    """Alive at once while one layer's backward pass is at work: three MLP-wide gradients, or a norm's in float32."""
    widest = 3 * compute_bytes * dimensions.intermediate / parallel.tensor
    norm = 3 * FLOAT32 * dimensions.hidden / parallel.sequence_share
    return max(widest, norm) + compute_bytes * dimensions.hidden


def training_activations(
    dimensions: Dimensions,
    parallel: Parallel,
    tokens: int,
    *,
    layers: int,
    in_flight: int,
    compute_bytes: int,
    packed: bool,
) -> Activations:
    """Of `in_flight` micro-batches of `tokens` tokens on a stage of `layers` layers.

    Besides the layers, a micro-batch keeps the last norm's input and output and the states that log-probs are made of.
    """
    per_layer = layer_bytes_per_token(dimensions, parallel, compute_bytes, packed=packed)
    outer = (FLOAT32 + 2 * compute_bytes) * dimensions.hidden
    gradients = layer_gradient_bytes_per_token(dimensions, parallel, compute_bytes)
    if parallel.recompute:
        inputs = compute_bytes * dimensions.hidden * layers / parallel.sequence_share
        return Activations(tokens * (in_flight * (inputs + outer)), tokens * (per_layer + gradients))
    return Activations(tokens * in_flight * (per_layer * layers + outer), tokens * gradients)


def scoring_activations(dimensions: Dimensions, parallel: Parallel, tokens: int, compute_bytes: int) -> float:
    """Of a forward pass without gradients: one layer's intermediates and the states for log-probs."""
    wide = 3 * compute_bytes * dimensions.intermediate / parallel.tensor
    norm = 2 * FLOAT32 * dimensions.hidden / parallel.sequence_share
    return tokens * (max(wide, norm) + 3 * compute_bytes * dimensions.hidden)


def logit_chunk_bytes(dimensions: Dimensions, parallel: Parallel, chunk: int, *, entropy: bool) -> float:
    """Logits of one chunk of tokens and their log-probs, float32 both; one more where the entropy has a gradient."""
    return chunk * dimensions.vocab / parallel.tensor * FLOAT32 * (3 if entropy else 2)


def head_gradient_bytes(dimensions: Dimensions, parallel: Parallel) -> float:
    """The output weight's gradient, which the chunks are added into in float32."""
    return FLOAT32 * dimensions.head_weights / parallel.tensor
