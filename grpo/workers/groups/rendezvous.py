"""How the ranks of a group find each other for `torch.distributed`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from grpo.tcp_store import loopback_transports, open_store


@dataclass(frozen=True)
class Membership:
    """A rank's place in its group. Each rank sees its own GPU alone, as device 0, whatever its `local_rank`."""

    rank: int
    world_size: int
    node_rank: int
    local_rank: int
    local_world_size: int
    master_address: str
    master_port: int
    first: int = 0  # where in all of a worker group's ranks this group begins, if it is a part of them

    def environment(self) -> dict[str, str]:
        """The variables that `torch.distributed` reads, by the names of torchrun."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "GROUP_RANK": str(self.node_rank),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
            **loopback_transports(self.master_address),
        }


def join_process_group(
    backend: Literal["gloo", "nccl"], *, timeout_s: float, environment: Mapping[str, str] | None = None
) -> None:
    """`init_process_group` by the variables of `Membership.environment`; without them, a group of this process alone.

    Args:
        backend: gloo on CPUs, nccl on GPUs.
        timeout_s: seconds that ranks wait for each other, here and in every collective.
        environment: None: that of the process.

    Raises:
        WorkerError: rank 0 cannot listen at its address.
        torch.distributed.DistError: the others did not come in time.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    named = os.environ if environment is None else environment
    timeout = timedelta(seconds=timeout_s)
    if "RANK" not in named:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
        return
    rank, world_size = int(named["RANK"]), int(named["WORLD_SIZE"])
    store = open_store(named["MASTER_ADDR"], int(named["MASTER_PORT"]), rank, world_size, timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


def leave_process_group() -> None:
    """Undo `join_process_group`; without it does nothing."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
