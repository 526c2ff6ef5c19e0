"""Whole weights of a sharded model, gathered over its ranks straight into the memory that is to hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from grpo.models.parallel_plans import shard_range
from grpo.workers.policy.parallel import ParallelContext

Pair = tuple[DTensor, Tensor]  # a parameter, and contiguous memory [shape of the whole] in the dtype wanted


def gathered(buckets: Iterable[Sequence[Pair]], parallel: ParallelContext) -> Iterator[None]:
    """Fill the memory of each bucket on every rank; at each step one is full, as far as the current stream goes.

    A rank rounds its shard into the place that it has in the whole, and one message for all tensors of a bucket brings
    the rest, with no copy on either side, where rows divide evenly over the ranks. The next bucket is asked for, and
    its shards are rounded, while one travels.
    """
    before = None
    for pairs in buckets:
        started = _Bucket(pairs, parallel)
        if before is not None:
            before.finish()
            yield
        before = started
    if before is not None:
        before.finish()
        yield


def tensor_parallel_dim(tensor: DTensor) -> int | None:
    """The dimension that tensor parallel ranks, the second of a mesh of two, have cut; None where each has all."""
    placement = tensor.placements[-1]
    if tensor.device_mesh.ndim == 1 or isinstance(placement, Replicate):
        return None
    return cast("Shard", placement).dim


class _Bucket:
    """Rows come from data parallel ranks; then, where a tensor is cut, the parts of tensor parallel ranks."""

    def __init__(self, pairs: Sequence[Pair], parallel: ParallelContext) -> None:
        """Start it."""
        self._parts, self._rows = [], []
        for parameter, target in pairs:
            assert parameter.shape == target.shape, (parameter.shape, target.shape)
            cut, own = tensor_parallel_dim(parameter), target
            if cut is not None:
                self._parts.append(_Join(target, cut, parallel.tp_group))
                own = self._parts[-1].own
            self._rows.append(_Join(own, 0, parallel.dp_group))
            # What lies on the host goes as it is, from pinned memory, and is rounded on the GPU.
            local = parameter.to_local().to(target.device, non_blocking=True)
            self._rows[-1].own.copy_(local, non_blocking=True)
        self._parallel = parallel
        self._under_way = _exchange(self._rows, parallel.dp_group)

    def finish(self) -> None:
        """The current stream's work from now on finds it whole."""
        _settle(self._under_way, self._rows)
        if self._parts:
            _settle(_exchange(self._parts, self._parallel.tp_group), self._parts)


class _Join:
    """A tensor that ranks of a group have parts of along `dim`, cut as `shard_range` does.

    `own` is where this rank's part goes. Parts of equal rows lie in the whole as they are exchanged; others go through
    memory of their own, [ranks, part].
    """

    def __init__(self, whole: Tensor, dim: int, group: dist.ProcessGroup) -> None:
        self._whole, self._dim, self._ranks = whole, dim, group.size()
        size, rank = whole.shape[dim], group.rank()
        self._size, self.single = size, self._ranks == 1
        first, stop = shard_range(size, rank, self._ranks)
        chunk = -(-size // self._ranks)
        self._staged = dim != 0 or size % self._ranks != 0 or not whole.is_contiguous()
        if self.single:
            self.own = whole
        elif self._staged:
            shape = (*whole.shape[:dim], chunk, *whole.shape[dim + 1 :])
            self._parts = whole.new_empty((self._ranks, *shape))
            self.output, self.input = self._parts.flatten(0, 1), self._parts[rank]
            self.own = self.input.narrow(dim, 0, stop - first)
        else:
            self.output = whole
            self.input = self.own = whole[first:stop]

    def settle(self) -> None:
        """All parts are there: put them together."""
        if self.single or not self._staged:
            return
        for rank in range(self._ranks):
            first, stop = shard_range(self._size, rank, self._ranks)
            part = self._parts[rank].narrow(self._dim, 0, stop - first)
            self._whole.narrow(self._dim, first, stop - first).copy_(part)


def _exchange(joins: Sequence[_Join], group: dist.ProcessGroup) -> Any:
    """Start bringing every rank's parts to all, as one message; None where there is nobody to exchange with."""
    several = [each for each in joins if not each.single]
    if not several:
        return None
    return group.allgather_into_tensor_coalesced([each.output for each in several], [each.input for each in several])


def _settle(under_way: Any, joins: Sequence[_Join]) -> None:
    if under_way is not None:
        under_way.wait()
    for each in joins:
        each.settle()
