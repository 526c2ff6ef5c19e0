"""How the ranks of a group find each other for `torch.distributed`."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_reserved: dict[int, socket.socket] = {}


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
        named = {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "GROUP_RANK": str(self.node_rank),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
        }
        if self.master_address in _LOOPBACK:  # or gloo and NCCL listen where others can reach them
            named |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        return named


def reserve_port(address: str) -> int:
    """A free port of `address`, held by this process until `join_process_group` listens on it."""
    held = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    held.bind((address, 0))
    held.listen(1024)
    port = int(held.getsockname()[1])
    _reserved[port] = held
    return port


def release_port(port: int) -> None:
    """Give up what `reserve_port` holds for a group that was not made; of one that was made nothing is held."""
    held = _reserved.pop(port, None)
    if held is not None:
        held.close()


def join_process_group(
    backend: Literal["gloo", "nccl"], *, timeout_s: float, environment: Mapping[str, str] | None = None
) -> None:
    """`init_process_group` by the variables of `Membership.environment`; without them, a group of this process alone.

    Args:
        backend: gloo on CPUs, nccl on GPUs.
        timeout_s: seconds that ranks wait for each other, here and in every collective.
        environment: None: that of the process.

    Raises:
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


def open_store(address: str, port: int, rank: int, world_size: int, timeout: timedelta) -> Any:
    """The store of a new group: rank 0, whose port it may have reserved, waits for the others.

    Raises:
        torch.distributed.DistError: the others did not come in time.
    """
    from torch._C._distributed_c10d import TCPStore

    held = _reserved.pop(port, None) if rank == 0 else None
    return TCPStore(
        address, port, world_size, is_master=rank == 0, timeout=timeout,
        master_listen_fd=None if held is None else held.detach(),
    )  # fmt: skip


def leave_process_group() -> None:
    """Undo `join_process_group`; without it does nothing."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
