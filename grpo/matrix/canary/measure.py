"""The whole canary: by one process, by the ranks of a launcher, or by one process a GPU that it starts itself."""

import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from grpo.errors import WorkerError
from grpo.matrix.canary.disk import write_rate
from grpo.matrix.canary.links import joined, measure_links, nccl_told
from grpo.matrix.canary.place import Place, place_of
from grpo.matrix.canary.rates import cpu_rates, gpu_rates
from grpo.tcp_store import loopback_transports
from grpo.telemetry.environment import lean_environment

DEADLINE_SECONDS = 120.0
_LAUNCHED = "GRPO_CANARY_LAUNCHED"
_HERE = "127.0.0.1"


def measure(out: Path, disk: Path, environ: Mapping[str, str], *, ranks: int | None = None) -> dict[str, Any] | None:
    """Measure, and give the content of canary.json; None in a rank that is not the first.

    `ranks`: processes to start on this machine where no launcher has; default: one a GPU. They write `out`, which this
    process then reads. Raises WorkerError where one of them fails or does not end in time.
    """
    place = place_of(environ)
    count = ranks or (torch.cuda.device_count() if torch.cuda.is_available() else 1)
    if place is None and count > 1:
        _launch(out, disk, environ, count)
        return None
    started = perf_counter()
    if place is None:
        found = _alone(disk)
    else:
        of_all = _together(place, disk)
        if of_all is None:
            return None
        found = of_all
    return {"time": time.time(), "seconds": round(perf_counter() - started, 2), **found}


def launched(environ: Mapping[str, str]) -> bool:
    """Whether this process is one of those that a canary started."""
    return _LAUNCHED in environ


def _alone(disk: Path) -> dict[str, Any]:
    device = _device(0)
    own = _rates(device)
    return assemble([{"host": _host(), "rates": own, "disk": write_rate(disk)}], device.type, {})


def _together(place: Place, disk: Path) -> dict[str, Any] | None:
    device = _device(place.local_rank)
    with nccl_told(device) as nccl, joined(place, device) as ranks:
        hosts = [each["host"] for each in ranks.gather({"host": _host()})]
        own: dict[str, Any] = {"host": _host(), "rates": _rates(device)}
        own |= measure_links(ranks, hosts)
        if place.local_rank == 0:
            own["disk"] = write_rate(disk)
        of_all = ranks.collect(own)
    return None if of_all is None else assemble(of_all, device.type, nccl)


def _host() -> str:
    """As Slurm names this node, where it does: whoever excludes it needs that name."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def _rates(device: torch.device) -> dict[str, Any]:
    return cpu_rates() if device.type == "cpu" else gpu_rates(device.index)


def assemble(of_ranks: Sequence[Mapping[str, Any]], device: str, nccl: Mapping[str, Any]) -> dict[str, Any]:
    """What the ranks measured, by node and by pair of nodes; of what several measured together, the slowest counts."""
    nodes = []
    for host in dict.fromkeys(str(each["host"]) for each in of_ranks):
        own = [each for each in of_ranks if each["host"] == host]
        within = [each["node"] for each in own if each.get("node") is not None]
        node: dict[str, Any] = {"host": host, "gpus" if device == "cuda" else "cpus": [each["rates"] for each in own]}
        if within:
            node["all_reduce_node_gb_per_s"] = min(within)
        node["disk_write_mb_per_s"] = next((each["disk"] for each in own if "disk" in each), None)
        nodes.append(node)
    slowest: dict[str, float] = {}
    for each in of_ranks:
        for pair, rate in each.get("pairs", {}).items():
            slowest[pair] = min(rate, slowest.get(pair, rate))
    pairs = [{"hosts": pair.split("|"), "all_reduce_pair_gb_per_s": rate} for pair, rate in slowest.items()]
    return {"device": device, "nodes": nodes, "pairs": pairs, "nccl": dict(nccl) or {"transport": "unknown"}}


def _launch(out: Path, disk: Path, environ: Mapping[str, str], count: int) -> None:
    """Start this very command once a rank and wait for all of them."""
    with socket.socket() as probe:
        probe.bind((_HERE, 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "grpo", "canary", "--out", str(out), "--disk", str(disk), "--quiet"]
    shared = {
        **lean_environment(environ),
        **loopback_transports(_HERE),
        _LAUNCHED: "1",
        "MASTER_ADDR": _HERE,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
    }
    processes = [
        subprocess.Popen(  # noqa: S603 - this very program
            command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    ends = perf_counter() + DEADLINE_SECONDS
    try:
        for rank, process in enumerate(processes):
            printed, _ = process.communicate(timeout=max(0.1, ends - perf_counter()))
            if process.returncode != 0:
                raise WorkerError(f"canary rank {rank} ended with {process.returncode}: {printed.strip()[-2000:]}")
    except subprocess.TimeoutExpired:
        raise WorkerError(f"the canary did not end within {DEADLINE_SECONDS:g} s") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
