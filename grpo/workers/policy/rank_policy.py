"""A policy as one rank of a group: what it is asked to do in pieces that travel between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from grpo.batching.batch import Batch
from grpo.placement.resources import Residence, Resource
from grpo.telemetry.environment import describe_node
from grpo.telemetry.memory import memory_metrics
from grpo.workers.groups.packed import PackedTensor, buckets
from grpo.workers.protocol import Policy, UpdateResult


class RankPolicy:
    """Holds a `Policy`. All ranks are asked the same; only the first answers with tensors."""

    def __init__(self, make: Callable[..., Policy], *arguments: object) -> None:
        """`make` is called with `arguments`; it joins the process group if the ranks need one."""
        self._policy = make(*arguments)
        self._outgoing: Iterator[list[tuple[str, Tensor]]] = iter(())
        self._incoming: dict[str, Tensor] = {}

    def weight_version(self) -> int:
        return self._policy.weight_version

    def describe(self) -> tuple[str, dict[str, Any]]:
        """The name of this rank's own GPU, or "cpu", and its machine as `describe_node` gives it."""
        return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu", describe_node()

    def logprobs(self, batch: Batch) -> Tensor | None:
        return self._of_first(self._policy.logprobs(batch))

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        return self._of_first(self._policy.reference_logprobs(batch))

    def train(self, batch: Batch) -> tuple[UpdateResult, int, dict[str, float]]:
        """The result, the version of the weights after it, and what this process measured since the last update."""
        result = self._policy.train(batch)
        return result, self._policy.weight_version, {**memory_metrics(), **self._policy.step_metrics()}

    def open_weights(self, bucket_bytes: int) -> list[PackedTensor] | None:
        """The first bucket of the weights; see `next_tensors`."""
        self._outgoing = buckets(self._policy.export_weights(), bucket_bytes)
        return self.next_tensors()

    def open_state(self, bucket_bytes: int) -> tuple[dict[str, Any], list[PackedTensor] | None]:
        """The values of the state and the first bucket of its tensors."""
        tensors, values = self._policy.state()
        self._outgoing = buckets(tensors.items(), bucket_bytes)
        return values, self.next_tensors()

    def next_tensors(self) -> list[PackedTensor] | None:
        """The next bucket of what was opened last, from the first rank; not full only if it is the last.

        Weights are gathered while they are taken, so every rank must take every bucket.
        """
        bucket = next(self._outgoing, [])
        return [PackedTensor.pack(name, tensor) for name, tensor in bucket] if _is_first() else None

    def receive(self, tensors: Sequence[PackedTensor]) -> None:
        """Keep tensors for `load_state`."""
        self._incoming.update(tensor.unpack() for tensor in tensors)

    def load_state(self, values: Mapping[str, Any]) -> int:
        """Take what was received; the version of the weights."""
        tensors, self._incoming = self._incoming, {}
        self._policy.load_state(tensors, values)
        return self._policy.weight_version

    def residences(self) -> dict[Resource, Residence]:
        return dict(self._policy.residences())

    def move(self, resource: Resource, residence: Residence) -> int:
        return self._policy.move(resource, residence)

    def release(self) -> dict[str, float]:
        return dict(self._policy.release())

    def _of_first(self, value: Tensor) -> Tensor | None:
        return value if _is_first() else None


def _is_first() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
