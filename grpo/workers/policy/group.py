"""A policy whose ranks live in a worker group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo.batching.batch import Batch
from grpo.checkpoint.manifest import Shards
from grpo.checkpoint.rank_state import Staged, staged_together
from grpo.checkpoint.reading import OpenCheckpoint
from grpo.errors import WorkerError
from grpo.placement.resources import Residence, Resource
from grpo.workers.groups.worker_group import WorkerGroup
from grpo.workers.protocol import UpdateResult

# What a rank's work on a call counts as.
_PHASES = {
    "logprobs": "timing/logprobs", "reference_logprobs": "timing/logprobs", "train": "timing/policy_training",
    "refit_send": "timing/refit", "stage_state": "timing/checkpoint",
}  # fmt: skip


@dataclass(frozen=True)
class RankSeconds:
    """Of each rank, in rank order: its machine, and by phase the seconds that it worked, its waits for others too."""

    hosts: list[str]
    phases: dict[str, list[float]]


class PolicyGroup:
    """`grpo.workers.protocol.Policy` over a group of `RankPolicy`.

    Every rank is sent the whole batch, once, and takes its own share of it; results are those of rank 0, and all ranks
    must be at the same version of the weights.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._measured: dict[str, float] = {}
        self.weight_version = self._agreed(group.call_all("weight_version"))
        self._residences: dict[Resource, Residence] = group.call_all("residences")[0]

    @property
    def workers(self) -> WorkerGroup:
        """The ranks."""
        return self._group

    def logprobs(self, batch: Batch) -> Tensor:
        """[T] float32 on the CPU; see `Policy.logprobs`."""
        values: Tensor = self._group.call_all("logprobs", batch)[0]
        return values

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """The same under the reference policy."""
        values: Tensor = self._group.call_all("reference_logprobs", batch)[0]
        return values

    def train(self, batch: Batch) -> UpdateResult:
        """One update on the whole batch.

        Raises:
            WorkerError: the ranks do not agree on the version of the weights after it.
        """
        answers = self._group.call_all("train", batch)
        results, versions, measured = zip(*answers, strict=True)
        self.weight_version = self._agreed(versions)
        self._measured |= _largest(measured)
        result: UpdateResult = results[0]
        return result

    def stage(self, *, copy: bool) -> Staged:
        """As `RankStates.stage`."""
        return staged_together(self._group.call_all("stage_state", copy))

    def write(self, folder: Path, *, in_background: bool) -> list[Shards]:
        """As `RankStates.write`: each rank its own files, all at a time."""
        return self._group.call_beside("write_state", folder, in_background)

    def load(self, checkpoint: OpenCheckpoint, *, optimizer: bool) -> list[str]:
        """As `RankStates.load`: each rank reads its part from the folder, which all must see."""
        versions, untaken = zip(*self._group.call_all("load_state", checkpoint.path, optimizer), strict=True)
        self.weight_version = self._agreed(versions)
        return [name for names in untaken for name in names]

    def residences(self) -> dict[Resource, Residence]:
        """The same on every rank."""
        return dict(self._residences)

    def move(self, resource: Resource, residence: Residence) -> int:
        """Every rank moves its part; the bytes of the largest."""
        if self._residences[resource] == residence:
            return 0
        copied: int = max(self._group.call_all("move", resource, residence))
        self._residences[resource] = residence
        return copied

    def release(self) -> dict[str, float]:
        """On every rank; the largest of each figure."""
        held = self._group.call_all("release")
        return {name: max(each[name] for each in held) for name in held[0]}

    def step_metrics(self) -> dict[str, float]:
        """Since it was asked last: what calls cost, and what ranks measured up to the last update, the largest each."""
        cost = self._group.dispatches.take()
        measured, self._measured = self._measured, {}
        return {**{f"performance/{name}": value for name, value in cost.items()}, **measured}

    def describe(self) -> tuple[list[str], list[dict[str, Any]]]:
        """The name of each rank's GPU, or "cpu"; and the machines, each once, as `describe_node` gives them."""
        names, nodes = zip(*self._group.call_all("describe"), strict=True)
        return list(names), list({node["host"]: node for node in nodes}.values())

    def rank_seconds(self) -> RankSeconds:
        """How long each rank worked in each phase, since it was asked last."""
        phases: dict[str, list[float]] = {}
        for method, seconds in self._group.dispatches.take_ranks().items():
            if method in _PHASES and len(seconds) == self._group.world_size:
                before = phases.get(_PHASES[method], [0.0] * len(seconds))
                phases[_PHASES[method]] = [sum(each) for each in zip(before, seconds, strict=True)]
        return RankSeconds(self._group.hosts, phases)

    def shutdown(self) -> None:
        """End the ranks; more than once does no harm."""
        self._group.shutdown()

    def _agreed(self, versions: Sequence[int]) -> int:
        if len(set(versions)) > 1:
            self._group.shutdown()
            told = ", ".join(f"rank {rank}: {version}" for rank, version in enumerate(versions))
            raise WorkerError(f"the ranks of the policy are at different versions of the weights: {told}")
        return versions[0]


def _largest(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure; resident memory under a name of its own, since the run's process has one too."""
    names = {name: "memory/policy_rss_gib" if name == "memory/rss_gib" else name for name in measured[0]}
    return {shown: max(each[name] for each in measured) for name, shown in names.items()}
