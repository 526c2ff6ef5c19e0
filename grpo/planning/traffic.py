"""Bytes that GPU memory moves besides the matrix products' own operands, counted from the kernels of a layer.

`c` is bytes an element in compute, h hidden, q and k the widths of all query and all key heads, f the MLP's width; per
token and layer, forward. A backward pass is counted as twice that: each of these kernels reads its gradient and an
operand more.

- RMSNorm, twice, one kernel: 2c h; as much for the heads where they are normalised
- residual, twice: 3c h
- rotary embedding, one kernel: 2c (q + k)
- attention: c (2q + 2k)
- SwiGLU, one kernel: 3c f
"""

from __future__ import annotations

from math import ceil

from grpo.models.dimensions import Dimensions
from grpo.planning.parallel import Parallel

FLOAT32 = 4
# AdamW reads parameter, gradient and two moments and writes back three; the gradient norm reads the gradient.
OPTIMIZER_BYTES = 4 * 4 + 3 * 4 + 4


def layer_traffic(dimensions: Dimensions, parallel: Parallel, compute_bytes: int) -> float:
    """Bytes per token of one layer's forward pass on one rank."""
    d, c, share, tensor = dimensions, compute_bytes, parallel.sequence_share, parallel.tensor
    norm = 2 * c
    rotated = (d.query_width + d.kv_width) / tensor
    heads = rotated * (2 * c + (norm if d.norms_heads else 0))
    attention = c * (2 * d.query_width + 2 * d.kv_width) / tensor
    return 2 * (norm + 3 * c) * d.hidden / share + heads + attention + 3 * c * d.intermediate / tensor


def logits_traffic(
    dimensions: Dimensions, parallel: Parallel, compute_bytes: int, *, tokens: float, batches: int, chunk: int
) -> tuple[float, float]:
    """Bytes of the forward and of the backward pass over `tokens` predicted tokens in `batches` micro-batches.

    A chunk's logits are written in float32 and read once. The backward pass makes them again where a micro-batch has
    several chunks, reads them, forms their rounded gradient, which two products read, and adds each chunk's weight
    gradient to the sum in float32.
    """
    width = dimensions.vocab / parallel.tensor
    forward = 2 * FLOAT32 * width * tokens
    chunks = batches * ceil(tokens / max(batches, 1) / chunk)
    again = forward if chunks > batches else 0.0
    sums = 2 * FLOAT32 * width * dimensions.hidden * chunks
    return forward, again + (FLOAT32 + 3 * compute_bytes) * width * tokens + sums
