"""A policy as one rank of a group: what it is asked to do in pieces that travel between processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from grpo.batching.batch import Batch
from grpo.checkpoint.manifest import Shards
from grpo.checkpoint.rank_state import RankState, Staged
from grpo.checkpoint.reading import open_checkpoint
from grpo.errors import CheckpointError
from grpo.placement.resources import Residence, Resource
from grpo.refit.endpoints import RefitSource
from grpo.telemetry.environment import describe_node
from grpo.telemetry.memory import memory_metrics
from grpo.workers.protocol import StatefulPolicy, UpdateResult


class RankPolicy(RefitSource):
    """Holds a `Policy`. All ranks are asked the same; only the first answers with tensors."""

    def __init__(self, make: Callable[..., StatefulPolicy], *arguments: object) -> None:
        """`make` is called with `arguments`; it joins the process group if the ranks need one."""
        self._policy = make(*arguments)
        super().__init__(self._policy)
        self._state = RankState(self._policy, _rank(), with_rng=True)

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

    def stage_state(self, copy: bool) -> Staged:  # noqa: FBT001 (calls between processes have no keywords)
        """As `RankState.stage`."""
        return self._state.stage(copy=copy)

    def write_state(self, folder: Path, in_background: bool) -> Shards:  # noqa: FBT001 (as above)
        """As `RankState.write`; beside other calls, on a thread of its own. Raises CheckpointError."""
        try:
            return self._state.write(folder, in_background=in_background)
        except OSError as error:
            raise CheckpointError(f"rank {_rank()} cannot write into {folder}: {error}") from error

    def load_state(self, checkpoint: Path, optimizer: bool) -> tuple[int, list[str]]:  # noqa: FBT001 (as above)
        """Read this rank's part; the version of the weights, and the random states that were not taken.

        The checkpoint has been verified by who gives its path.
        """
        with open_checkpoint(checkpoint, None, verify_hashes=False) as opened:
            untaken = self._state.load(opened, optimizer=optimizer)
        return self._policy.weight_version, untaken

    def residences(self) -> dict[Resource, Residence]:
        return dict(self._policy.residences())

    def move(self, resource: Resource, residence: Residence) -> int:
        return self._policy.move(resource, residence)

    def release(self) -> dict[str, float]:
        return dict(self._policy.release())

    def _of_first(self, value: Tensor) -> Tensor | None:
        return value if _is_first() else None


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _is_first() -> bool:
    return _rank() == 0
