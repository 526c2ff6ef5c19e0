"""Host memory that tensors are copied to, for an offload or a file: it begins at a page, and may be page-locked."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

_TOUCHED_AT_ONCE = 64 * 2**20


def filled(size: int, device: int | None) -> Tensor:
    """[size] uint8 whose memory is all there; page-locked for the GPU `device` where one is given.

    Raises RuntimeError if it cannot be page-locked.
    """
    buffer = pages(size)
    touch(buffer)
    if device is not None and size:
        torch.cuda.set_device(device)
        page_lock(buffer)
    return buffer


def pages(size: int) -> Tensor:
    """[size] uint8, of large pages where the system has them: they are given, locked and copied to faster."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def touch(buffer: Tensor) -> None:
    """Have the system give every page. Calls of ctypes release the interpreter, unlike numpy's on strided views."""
    for start in range(0, buffer.numel(), _TOUCHED_AT_ONCE):
        ctypes.memset(buffer.data_ptr() + start, 0, min(_TOUCHED_AT_ONCE, buffer.numel() - start))


def page_lock(buffer: Tensor) -> None:
    """Register memory with CUDA. torch's pinned memory comes in powers of two, nearly twice of what is needed."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = buffer.data_ptr()
    torch.cuda.check_error(runtime.cudaHostRegister(address, buffer.numel(), 0))
    weakref.finalize(buffer, runtime.cudaHostUnregister, address)
