"""Ranks of one engine that step together: all act on the same requests and updates before the same step."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Protocol

HEARTBEAT_SECONDS = 5.0  # the first rank speaks so often while there is nothing to do, or the others' wait would end


@dataclass(frozen=True)
class Seen:
    """What has reached a rank since it began."""

    requests: int
    updates: int
    closing: bool


class Together(Protocol):
    """How ranks agree on what they act on next."""

    @property
    def leads(self) -> bool:
        """Whether this rank's view is the one that counts."""
        ...

    def agree(self, seen: Seen) -> Seen:
        """What all act on; waits for the rank that leads. Everything of it is on its way to the others."""
        ...


class Alone:
    """An engine of one rank."""

    leads = True

    def agree(self, seen: Seen) -> Seen:
        return seen


class Lockstep:
    """Over a group of its own among all ranks of the default process group, on the CPU: 0.1 ms a step on one node."""

    def __init__(self, *, deadline_s: float) -> None:
        """All ranks at the same time. `deadline_s`: that a rank waits for the first one."""
        import torch.distributed as dist

        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=deadline_s))
        self.leads = dist.get_rank() == 0

    def agree(self, seen: Seen) -> Seen:
        import torch
        import torch.distributed as dist

        told = torch.tensor(astuple(seen), dtype=torch.int64)
        dist.broadcast(told, src=0, group=self._group)
        requests, updates, closing = told.tolist()
        return Seen(requests, updates, bool(closing))
