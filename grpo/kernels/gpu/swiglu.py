"""silu(gate) x up and its gradients, rows cut into blocks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from grpo.kernels.gpu.launch import side_by_side

BLOCK = 2048


@triton.jit
def _forward(g_ptr, u_ptr, y_ptr, g_stride, u_stride, width, SIZE: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = column < width
    g = tl.load(g_ptr + row * g_stride + column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + row * u_stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * width + column, (g * tl.sigmoid(g) * u).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    dy_ptr, g_ptr, u_ptr, dg_ptr, du_ptr, dy_stride, g_stride, u_stride, dg_stride, du_stride, width,
    SIZE: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = column < width
    dy = tl.load(dy_ptr + row * dy_stride + column, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + row * g_stride + column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(u_ptr + row * u_stride + column, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(g)
    dg = dy * u * sigmoid * (1.0 + g * (1.0 - sigmoid))
    du = dy * g * sigmoid
    narrow = dg_ptr.dtype.element_ty
    tl.store(dg_ptr + row * dg_stride + column, dg.to(narrow), mask=inside)
    tl.store(du_ptr + row * du_stride + column, du.to(narrow), mask=inside)


def swiglu_forward(gate: Tensor, up: Tensor) -> Tensor:
    """Of rows [R, F] whose elements lie side by side -> [R, F], contiguous."""
    gate, up, (rows, width) = side_by_side(gate), side_by_side(up), gate.shape
    output = torch.empty((rows, width), dtype=gate.dtype, device=gate.device)
    if rows:
        size = min(BLOCK, triton.next_power_of_2(width))
        _forward[(rows, triton.cdiv(width, size))](gate, up, output, gate.stride(0), up.stride(0), width, SIZE=size)
    return output


def swiglu_backward(grad: Tensor, gate: Tensor, up: Tensor, grad_gate: Tensor, grad_up: Tensor) -> None:
    """Writes the gradients of gate and up into the last two, rows as well."""
    rows, width = gate.shape
    grad, gate, up = side_by_side(grad), side_by_side(gate), side_by_side(up)
    if rows:
        size = min(BLOCK, triton.next_power_of_2(width))
        _backward[(rows, triton.cdiv(width, size))](
            grad, gate, up, grad_gate, grad_up,
            *(each.stride(0) for each in (grad, gate, up, grad_gate, grad_up)), width, SIZE=size,
        )  # fmt: skip
