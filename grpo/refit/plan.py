"""Which policy rank sends to which engine rank, and over what."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grpo.refit.channel import Machine
from grpo.refit.errors import RefitError

Transport = Literal["shared", "broadcast"]


@dataclass(frozen=True)
class Place:
    """Where a rank has its tensors: ranks with an equal place can show each other theirs."""

    machine: Machine | None  # None: of a system on which processes cannot
    device: str  # "cpu", or the unique name of a GPU

    @classmethod
    def here(cls, *, on_gpu: bool) -> Place:
        """Of this process, whose current GPU it is."""
        machine = Machine.here() if sys.platform == "linux" else None
        if not on_gpu:
            return cls(machine, "cpu")
        import torch

        return cls(machine, str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))

    def __str__(self) -> str:
        return f"device {self.device} of {self.machine or 'a system on which processes share no memory'}"


@dataclass(frozen=True)
class Plan:
    """Of a run."""

    transport: Transport
    source_of: tuple[int, ...]  # of each engine rank the policy rank that sends to it

    def receivers(self, source: int) -> list[int]:
        """The engine ranks that a policy rank sends to, in the order of their numbers there."""
        return [engine for engine, sender in enumerate(self.source_of) if sender == source]

    def number(self, engine: int) -> int:
        """Of an engine rank among the receivers of its sender."""
        return self.receivers(self.source_of[engine]).index(engine)


def plan_refit(sources: Sequence[Place], engines: Sequence[Place], *, colocated: bool) -> Plan:
    """Shared memory where policy and engine share their devices, else a broadcast from the policy's rank 0.

    Raises:
        RefitError: they are to share their devices and do not.
    """
    if not colocated or (engines[0].device == "cpu" and engines[0].machine is None):
        return Plan("broadcast", (0,) * len(engines))
    found = []
    for rank, place in enumerate(engines):
        if place.machine is None or place not in sources:
            held = ", ".join(sorted({str(each) for each in sources}))
            raise RefitError(
                f"policy.generation.colocated.enabled=True, but engine rank {rank} is on {place}, where the policy has "
                f"no rank (it is on {held}); with false, policy and engine have devices of their own"
            )
        found.append(list(sources).index(place))
    return Plan("shared", tuple(found))
