"""All-reduce within each node and between each pair of nodes."""

import datetime as dt
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from grpo.matrix.canary.nccl import ENVIRONMENT, read_transport
from grpo.matrix.canary.place import Place, rounds_of_pairs
from grpo.tcp_store import open_store

DEADLINE = dt.timedelta(seconds=60)
_GPU_BYTES, _CPU_BYTES = 256 << 20, 4 << 20
_TIMES = 5


class Ranks:
    """The process group of all ranks, and the store by which they tell each other what they measured."""

    def __init__(self, place: Place, device: torch.device, store: Any) -> None:
        self.place = place
        self._device = device
        self._store = store
        self._gathered = 0

    def collect(self, value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """What each rank gives, by rank, as JSON; None in a rank that is not the first.

        One rank reads: if thousands read what thousands gave, the store would be asked millions of times.
        """
        self._gathered += 1
        prefix = f"canary/{self._gathered}"
        self._store.set(f"{prefix}/{self.place.rank}", json.dumps(value))
        if self.place.rank != 0:
            return None
        keys = [f"{prefix}/{rank}" for rank in range(self.place.world_size)]
        self._store.wait(keys, DEADLINE)
        return [json.loads(self._store.get(key)) for key in keys]

    def gather(self, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        """As `collect`, in every rank: for small values."""
        collected = self.collect(value)
        key = f"canary/{self._gathered}/all"
        if collected is not None:
            self._store.set(key, json.dumps(collected))
            return collected
        self._store.wait([key], DEADLINE)
        of_all: list[dict[str, Any]] = json.loads(self._store.get(key))
        return of_all

    def rate(self, groups: Sequence[Sequence[int]]) -> float | None:
        """Bus bandwidth, 10^9 B/s, of an all-reduce in this rank's one of several groups; None where it is in none.

        Every rank has to call this with the same groups, which share no rank; they work at the same time. The bus
        bandwidth of n ranks is 2 (n - 1) / n times bytes over seconds, as nccl-tests define it.
        """
        made = [(ranks, dist.new_group(list(ranks), timeout=DEADLINE)) for ranks in groups if len(ranks) > 1]
        mine = next(((ranks, group) for ranks, group in made if self.place.rank in ranks), None)
        rate = None
        if mine is not None:
            ranks, group = mine
            size = _GPU_BYTES if self._device.type == "cuda" else _CPU_BYTES
            data = torch.zeros(size // 4, device=self._device)
            seconds = median(self._once(data, group) for _ in range(_TIMES + 2))
            rate = 2 * (len(ranks) - 1) / len(ranks) * size / seconds / 1e9
        for _, group in made:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
        return rate

    def _once(self, data: torch.Tensor, group: Any) -> float:
        self._wait()
        dist.barrier(group=group)
        self._wait()
        started = perf_counter()
        dist.all_reduce(data, group=group)
        self._wait()
        return perf_counter() - started

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


@contextmanager
def joined(place: Place, device: torch.device) -> Iterator[Ranks]:
    """All ranks in one process group, over NCCL or gloo; rank 0 keeps the store until the others are done."""
    store = open_store(place.address, place.port, place.rank, place.world_size, DEADLINE)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", store=store, rank=place.rank, world_size=place.world_size,
        timeout=DEADLINE, device_id=device if device.type == "cuda" else None,
    )  # fmt: skip
    try:
        yield Ranks(place, device, store)
    finally:
        dist.destroy_process_group()
    store.set(f"canary/left/{place.rank}", "")
    if place.rank == 0:
        store.wait([f"canary/left/{rank}" for rank in range(place.world_size)], DEADLINE)


def measure_links(ranks: Ranks, hosts: Sequence[str]) -> dict[str, Any]:
    """`node` and `pairs`: this rank's rate within its node, and with each node that its own was paired with.

    `hosts` are those of all ranks.
    """
    nodes = list(dict.fromkeys(hosts))
    of_node = {node: [rank for rank, host in enumerate(hosts) if host == node] for node in nodes}
    within = ranks.rate([of_node[node] for node in nodes])
    between: dict[str, float] = {}
    own = hosts[ranks.place.rank]
    for pairs in rounds_of_pairs(nodes):
        rate = ranks.rate([of_node[first] + of_node[second] for first, second in pairs])
        pair = next((each for each in pairs if own in each), None)
        if rate is not None and pair is not None:
            between["|".join(pair)] = rate
    return {"node": within, "pairs": between}


@contextmanager
def nccl_told(device: torch.device) -> Iterator[dict[str, Any]]:
    """What NCCL says of its way, filled in when the block is left; unknown where NCCL_DEBUG is set already."""
    found: dict[str, Any] = {"version": None, **read_transport([])}
    if device.type == "cuda":
        nccl: Any = torch.cuda.nccl
        version = nccl.version()
        found["version"] = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    if device.type != "cuda" or "NCCL_DEBUG" in os.environ:
        yield found
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nccl"
        os.environ.update(ENVIRONMENT, NCCL_DEBUG_FILE=str(path))
        yield found
        if path.is_file():
            found.update(read_transport(path.read_text(encoding="utf-8", errors="replace").splitlines()))
