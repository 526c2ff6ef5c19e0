"""RMSNorm: a row at a time in registers; forward reads it once, backward once with its gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grpo.kernels.gpu.launch import programs_at_once, side_by_side, warps

TILE = 4096  # elements of narrow rows that one program takes together


@triton.jit
def _forward(x_ptr, w_ptr, y_ptr, root_ptr, rows, x_stride, width, epsilon, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    x = tl.load(x_ptr + row[:, None] * x_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 1) / width + epsilon)
    y = x * inverse[:, None] * w[None, :]
    tl.store(y_ptr + row[:, None] * width + column[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(root_ptr + row, inverse, mask=row < rows)


@triton.jit
def _backward(
    dy_ptr, x_ptr, w_ptr, root_ptr, dx_ptr, dw_ptr, rows, dy_stride, x_stride, width,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDTH)
    w = tl.load(w_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    dw = tl.zeros((WIDTH,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        x = tl.load(x_ptr + row[:, None] * x_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row[:, None] * dy_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
        inverse = tl.load(root_ptr + row, mask=row < rows, other=0.0)
        unit = x * inverse[:, None]
        dw += tl.sum(dy * unit, 0)
        scaled = dy * w[None, :]
        along = tl.sum(scaled * unit, 1) / width
        dx = (scaled - unit * along[:, None]) * inverse[:, None]
        tl.store(dx_ptr + row[:, None] * width + column[None, :], dx.to(dx_ptr.dtype.element_ty), mask=inside)
    tl.store(dw_ptr + tl.program_id(0).to(tl.int64) * width + column, dw, mask=column < width)


def rms_norm_forward(rows: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Rows [R, H], weight [H] -> the normalised rows and 1 / root [R] float32."""
    rows, (count, width) = side_by_side(rows), rows.shape
    output = torch.empty((count, width), dtype=rows.dtype, device=rows.device)
    inverse = torch.empty(count, dtype=torch.float32, device=rows.device)
    if count:
        together, wide = _tile(width)
        _forward[(triton.cdiv(count, together),)](
            rows, weight, output, inverse, count, rows.stride(0), width, epsilon,
            ROWS=together, WIDTH=wide, num_warps=warps(together * wide),
        )  # fmt: skip
    return output, inverse


def rms_norm_backward(grad: Tensor, rows: Tensor, weight: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the rows and of the weight, from that of the output."""
    grad, rows, (count, width) = side_by_side(grad), side_by_side(rows), rows.shape
    grad_rows = torch.empty((count, width), dtype=rows.dtype, device=rows.device)
    if not count:
        return grad_rows, torch.zeros_like(weight)
    together, wide = _tile(width)
    programs = min(triton.cdiv(count, together), programs_at_once(rows.device))
    partial = torch.empty((programs, width), dtype=torch.float32, device=rows.device)
    _backward[(programs,)](
        grad, rows, weight, inverse, grad_rows, partial, count, grad.stride(0), rows.stride(0), width,
        ROWS=together, WIDTH=wide, num_warps=warps(together * wide),
    )  # fmt: skip
    return grad_rows, partial.sum(0).to(weight.dtype)


def _tile(width: int) -> tuple[int, int]:
    """Rows that one program takes together, and the power of two that holds a row."""
    wide = triton.next_power_of_2(width)
    return max(1, min(TILE // wide, 32)), wide
