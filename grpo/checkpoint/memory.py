"""Memory of the CPU that tensors are copied to on their way to a file: it begins at a page, and may be page-locked."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

_TOUCHED_AT_ONCE = 64 * 2**20


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


def copy_plain(source: Tensor, target: Tensor) -> None:
    """Copy [n] uint8 on any device to [n] uint8 on the CPU, with this thread alone and the interpreter released."""
    if source.is_cuda:
        target.copy_(source)
    else:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())
