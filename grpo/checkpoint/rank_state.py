"""What one process has of the trained model's state: staged, written and loaded by that process alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from grpo.checkpoint.manifest import Shards
from grpo.checkpoint.pieces import Piece, whole_pieces
from grpo.checkpoint.reading import OpenCheckpoint
from grpo.checkpoint.rng import capture_rng, restore_rng
from grpo.checkpoint.shards import MAX_SHARD_BYTES, ShardPlan, plan_shards, write_shards
from grpo.checkpoint.staging import StagingBuffers
from grpo.errors import CheckpointError

PREFIX = "policy/"
_RNG_OF_RANKS = "rng_of_ranks"


class Stateful(Protocol):
    """What a policy gives and takes."""

    def state(self) -> tuple[list[Piece], dict[str, Any]]: ...

    def load_state(self, tensors: Mapping[str, Any], values: Mapping[str, Any], *, optimizer: bool = True) -> None: ...


@dataclass(frozen=True)
class Staged:
    """What is ready to be written: bytes of tensors, JSON values for the checkpoint, and seconds that it took."""

    bytes: int
    values: dict[str, Any]
    seconds: float


class RankStates(Protocol):
    """The states of all ranks of a policy, wherever they live."""

    def prepare(self) -> None:
        """Have every rank begin to make, beside its work, what `stage` copies to."""
        ...

    def stage(self, *, copy: bool) -> Staged:
        """Have every rank note what it is to write; with `copy`, copy it, so that training may go on."""
        ...

    def write(self, folder: Path, *, in_background: bool) -> list[Shards]:
        """Have every rank write what it staged. May be called from another thread, beside other calls."""
        ...

    def load(self, checkpoint: OpenCheckpoint, *, optimizer: bool) -> list[str]:
        """Have every rank read its part, with or without the optimizer; names of random states that were not taken."""
        ...


class RankState:
    """The state of one rank."""

    def __init__(
        self, policy: Stateful, rank: int = 0, *, with_rng: bool, max_shard_bytes: int = MAX_SHARD_BYTES
    ) -> None:
        """`with_rng`: the process is the rank's own, so its random states are the rank's to save."""
        self._policy = policy
        self._rank = rank
        self._with_rng = with_rng
        self._max_shard_bytes = max_shard_bytes
        self._buffers = StagingBuffers()
        self._plan: ShardPlan | None = None
        self._content: Mapping[str, Tensor] | None = None

    @property
    def _rng_prefix(self) -> str:
        return f"rng/rank_{self._rank:05d}/"

    def prepare(self) -> None:
        """As `RankStates.prepare`; of use once the optimizer has its state."""
        self._buffers.prepare(self._planned()[0])

    def stage(self, *, copy: bool) -> Staged:
        """As `RankStates.stage`; the values of one rank."""
        started = time.perf_counter()
        self._plan, values = self._planned()
        self._content = self._buffers.stage(self._plan) if copy else None
        return Staged(self._plan.tensor_bytes, values, time.perf_counter() - started)

    def _planned(self) -> tuple[ShardPlan, dict[str, Any]]:
        pieces, own = self._policy.state()
        pieces = [replace(piece, name=PREFIX + piece.name) for piece in pieces]
        values: dict[str, Any] = {"policy": own}
        if self._with_rng:
            tensors, states = capture_rng(self._rng_prefix)
            pieces += whole_pieces(tensors)
            values[_RNG_OF_RANKS] = {str(self._rank): states}
        return plan_shards(pieces, self._max_shard_bytes, prefix=f"rank_{self._rank:05d}"), values

    def write(self, folder: Path, *, in_background: bool) -> Shards:
        """Write what was staged, once. Raises OSError."""
        assert self._plan is not None, "stage comes first"
        plan, content = self._plan, self._content
        self._plan = self._content = None
        return write_shards(folder, plan, content, in_background=in_background)

    def load(self, checkpoint: OpenCheckpoint, *, optimizer: bool) -> list[str]:
        """As `RankStates.load`. Raises CheckpointError if the checkpoint is of another model."""
        tensors = {
            name.removeprefix(PREFIX): checkpoint.tensors[name]
            for name in checkpoint.tensors
            if name.startswith(PREFIX)
        }
        try:
            values = checkpoint.values["policy"]
        except KeyError as error:
            raise CheckpointError(f"{checkpoint.path} is not the checkpoint of a run: it has no {error}") from error
        self._policy.load_state(tensors, values, optimizer=optimizer)
        if not self._with_rng:
            return []
        states = checkpoint.values.get(_RNG_OF_RANKS, {}).get(str(self._rank))
        if states is None:
            return [self._rng_prefix]
        return restore_rng(checkpoint.tensors, states, self._rng_prefix)


class LocalState:
    """`RankStates` of a policy that is one rank, in this process."""

    def __init__(self, policy: Stateful) -> None:
        self._state = RankState(policy, with_rng=False)

    def prepare(self) -> None:
        self._state.prepare()

    def stage(self, *, copy: bool) -> Staged:
        return self._state.stage(copy=copy)

    def write(self, folder: Path, *, in_background: bool) -> list[Shards]:
        return [self._state.write(folder, in_background=in_background)]

    def load(self, checkpoint: OpenCheckpoint, *, optimizer: bool) -> list[str]:
        return self._state.load(checkpoint, optimizer=optimizer)


def staged_together(ranks: Sequence[Staged]) -> Staged:
    """Of all ranks, in rank order; the policy's values are the first one's."""
    states: dict[str, Any] = {}
    for each in ranks:
        states.update(each.values.get(_RNG_OF_RANKS, {}))
    values = {**ranks[0].values, **({_RNG_OF_RANKS: states} if states else {})}
    return Staged(sum(each.bytes for each in ranks), values, max(each.seconds for each in ranks))
