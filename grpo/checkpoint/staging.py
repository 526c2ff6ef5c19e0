"""Copies of live tensors in memory of the CPU, from which they are written while training goes on.

All that a save in the background copies, and where, is in this module. The buffers are made once and used again; those
for a GPU are page-locked, and the copies run on a stream of their own. Memory that is touched for the first time costs
many times the copy into it, and page-locking touches it: `prepare` has that done by a thread while training goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from grpo import host_memory
from grpo.checkpoint.pieces import Piece
from grpo.checkpoint.shards import ShardPlan, lower_priority, shard_bytes


class StagingBuffers:
    """A buffer for each file of a plan, laid out as the data of that file.

    What a call of `stage` gave is overwritten by the next: the caller has written it by then.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._stream: torch.cuda.Stream | None = None
        self._made: Future[dict[str, Tensor]] | None = None

    def prepare(self, plan: ShardPlan) -> None:
        """Begin to make the buffers of this plan, in a thread; `stage` waits for it."""
        if self._made is None and not self._buffers:
            sizes = {file: shard_bytes(pieces) for file, pieces in plan.shards.items()}
            device = torch.cuda.current_device() if _from_gpu(plan) else None
            pool = ThreadPoolExecutor(1, "checkpoint-memory", lower_priority)
            self._made = pool.submit(_made, sizes, device)
            pool.shutdown(wait=False)

    @torch.no_grad()
    def stage(self, plan: ShardPlan) -> Mapping[str, Tensor]:
        """Of each file, its bytes [data] uint8 on the CPU; complete when it returns.

        Without `prepare` the first call also makes the buffers, which takes longer than the copies.
        """
        from_gpu = _from_gpu(plan)
        if self._made is not None:
            self._buffers, self._made = self._made.result(), None
        self._buffers = {
            file: self._buffer(file, shard_bytes(pieces), page_locked=from_gpu) for file, pieces in plan.shards.items()
        }
        if not from_gpu:
            self._copy(plan)
            return dict(self._buffers)
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._copy(plan)
        self._stream.synchronize()
        return dict(self._buffers)

    def _copy(self, plan: ShardPlan) -> None:
        for file, pieces in plan.shards.items():
            for piece, target in zip(pieces, _views(self._buffers[file], pieces), strict=True):
                target.copy_(piece.data, non_blocking=True)

    def _buffer(self, file: str, size: int, *, page_locked: bool) -> Tensor:
        present = self._buffers.get(file)
        if present is not None and present.numel() == size:
            return present
        made = host_memory.pages(size)
        if page_locked and size:
            host_memory.page_lock(made)
        return made


def _from_gpu(plan: ShardPlan) -> bool:
    return any(piece.data.is_cuda for pieces in plan.shards.values() for piece in pieces)


def _made(sizes: Mapping[str, int], device: int | None) -> dict[str, Tensor]:
    return {file: host_memory.filled(size, device) for file, size in sizes.items()}


def _views(buffer: Tensor, pieces: Sequence[Piece]) -> list[Tensor]:
    """Where each piece goes; every offset is a multiple of its width, since wide types come first."""
    views, offset = [], 0
    for piece in pieces:
        end = offset + piece.data.nbytes
        views.append(buffer[offset:end].view(piece.data.dtype).view(piece.data.shape))
        offset = end
    return views
