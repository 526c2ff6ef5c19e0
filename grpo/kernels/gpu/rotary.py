"""Rotary embedding: all heads of a token, queries and keys, in one program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grpo.kernels.gpu.launch import side_by_side, warps


@triton.jit
def _turn_heads(
    x_ptr, y_ptr, x_head, count, half, cosine, sine, column, HEADS: tl.constexpr,
):  # fmt: skip
    head = tl.arange(0, HEADS)
    inside = (head < count)[:, None] & (column < half)[None, :]
    x = x_ptr + head[:, None] * x_head + column[None, :]
    first = tl.load(x, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + half, mask=inside, other=0.0).to(tl.float32)
    y = y_ptr + head[:, None] * (2 * half) + column[None, :]
    narrow = y_ptr.dtype.element_ty
    tl.store(y, (first * cosine - second * sine).to(narrow), mask=inside)
    tl.store(y + half, (second * cosine + first * sine).to(narrow), mask=inside)


@triton.jit
def _turn(
    q_ptr, k_ptr, q_out, k_out, cos_ptr, sin_ptr, inner, heads, kv_heads, half,
    q_a, q_b, q_head, k_a, k_b, k_head, cos_a, cos_b, sin_a, sin_b,
    BACK: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    a, b = token // inner, token % inner
    column = tl.arange(0, HALF)
    c = tl.load(cos_ptr + a * cos_a + b * cos_b + column, mask=column < half, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin_ptr + a * sin_a + b * sin_b + column, mask=column < half, other=0.0).to(tl.float32)[None, :]
    if BACK:
        s = -s
    _turn_heads(q_ptr + a * q_a + b * q_b, q_out + token * heads * 2 * half, q_head, heads, half, c, s, column, HEADS)
    _turn_heads(
        k_ptr + a * k_a + b * k_b, k_out + token * kv_heads * 2 * half, k_head, kv_heads, half, c, s, column, KV_HEADS
    )


def turn(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor, *, back: bool) -> tuple[Tensor, Tensor]:
    """Both, contiguous; `back` turns the other way, which is what the gradient needs."""
    query, key = side_by_side(query), side_by_side(key)
    outer, inner, heads, width = query.shape
    kv_heads, half = key.shape[2], width // 2
    turned_query = torch.empty((outer, inner, heads, width), dtype=query.dtype, device=query.device)
    turned_key = torch.empty((outer, inner, kv_heads, width), dtype=key.dtype, device=key.device)
    if outer * inner:
        many, wide = triton.next_power_of_2(heads), triton.next_power_of_2(half)
        _turn[(outer * inner,)](
            query, key, turned_query, turned_key, cosine, sine, inner, heads, kv_heads, half,
            *query.stride()[:3], *key.stride()[:3], *_steps(cosine), *_steps(sine),
            BACK=back, HEADS=many, KV_HEADS=triton.next_power_of_2(kv_heads), HALF=wide,
            num_warps=warps(2 * many * wide),
        )  # fmt: skip
    return turned_query, turned_key


def _steps(angles: Tensor) -> tuple[int, int]:
    """Strides of the first two dimensions, of which one of size 1 serves all."""
    first, second, last = angles.stride()
    assert last == 1, "angles lie side by side"
    return (0 if angles.shape[0] == 1 else first), (0 if angles.shape[1] == 1 else second)
