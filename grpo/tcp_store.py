"""The store at which the processes of a group meet, and where it listens: at the group's address alone."""

from __future__ import annotations

import ipaddress
import os
import socket
from datetime import timedelta
from typing import Any

from grpo.errors import WorkerError

_BACKLOG = 1024  # ranks that may come at the same moment
_reserved: dict[int, socket.socket] = {}


def reserve_port(address: str) -> int:
    """A free port of `address`, held by this process until `open_store` listens on it."""
    held = _listening(address, 0)
    port = int(held.getsockname()[1])
    _reserved[port] = held
    return port


def release_port(port: int) -> None:
    """Give up what `reserve_port` holds for a group that was not made; of one that was made nothing is held."""
    held = _reserved.pop(port, None)
    if held is not None:
        held.close()


def open_store(address: str, port: int, rank: int, world_size: int, timeout: timedelta) -> Any:
    """The store of a new group: rank 0, whose port it may have reserved, waits for the others.

    By itself torch's store would listen on all interfaces of rank 0's node; this one listens at `address` alone.

    Args:
        address: of rank 0's node, as the others reach it: loopback, or in the network of the job.
        port: at which rank 0 listens.
        rank: of this process.
        world_size: processes that come.
        timeout: for the others to come, and for whatever is asked of the store.

    Raises:
        WorkerError: rank 0 cannot listen there.
        torch.distributed.DistError: the others did not come in time.
    """
    from torch._C._distributed_c10d import TCPStore

    held = None
    if rank == 0:
        held = _reserved.pop(port, None) or _listening(address, port)
    return TCPStore(
        address, port, world_size, is_master=rank == 0, timeout=timeout,
        master_listen_fd=None if held is None else held.detach(),
    )  # fmt: skip


def loopback_transports(address: str) -> dict[str, str]:
    """Variables that keep gloo and NCCL of a group that meets on loopback there, or others reach them; else none."""
    local = address in {"localhost", "::1"} or address.startswith("127.")
    return {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if local else {}


def _listening(address: str, port: int) -> socket.socket:
    try:
        family, where = _resolved(address, port)
        return socket.create_server(where, family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise WorkerError(
            f"rank 0 cannot listen at {address}:{port} ({reason}): it takes an address of rank 0's node and a free port"
        ) from error


def _resolved(address: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Of a name with several addresses the first that other nodes reach, if there is one."""
    found = [(each[0], str(each[4][0])) for each in socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)]
    outside = [each for each in found if not ipaddress.ip_address(each[1].partition("%")[0]).is_loopback]
    family, literal = (outside or found)[0]
    return family, (literal, port)
