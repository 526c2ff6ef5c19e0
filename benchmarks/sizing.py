"""What grows with the number of nodes and ranks, measured on one machine: `nox -s bench -- sizing`.

Ray nodes are pretended ones, whose raylets share this machine: what they cost themselves is each real node's own
business, and what they cost the head is told apart. Ranks are stand-ins: a few processes answer for all of them, so
that the driver's own work remains. Everything else is the trainer's own code with the sizes of that many ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

RANKS = (8, 32, 128, 512, 2048)
PIECES_OF_RANKS = (8, 32, 128)  # of a checkpoint: linear, and a gigabyte of memory at four times the last
RAY_NODES = (1, 2, 4, 8, 16)
ACTORS = (8, 16, 32)
STAND_INS = 2  # processes that answer for all ranks
TENSORS = 723 * 3  # of a 70B Llama: a parameter and two moments each
SEQUENCES = 32  # of a rank, in a step
Row = dict[str, float]


def timed(function: Callable[[], object], repeat: int = 3) -> float:
    """Least seconds of several goes: others use this machine too."""
    best = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best


def dispatch(ranks: Iterable[int]) -> list[Row]:
    """One call of all ranks by the driver: what it takes of the clock and of the driver's CPU."""
    import ray

    from grpo.workers.groups.dispatches import Dispatches
    from grpo.workers.groups.rank_host import Answer
    from grpo.workers.groups.ray_group import RayGroup

    @ray.remote(num_cpus=0)
    class StandIn:
        def call(self, method: str, arguments: object, limit_s: float) -> Answer:  # noqa: ARG002
            return Answer(None, None, 0.0)

    rows = []
    actors = [StandIn.remote() for _ in range(STAND_INS)]  # type: ignore[attr-defined]
    ray.get([actor.call.remote("", (), 1.0) for actor in actors])
    me = psutil.Process()
    for count in ranks:
        group: Any = object.__new__(RayGroup)
        vars(group).update(
            _actors=[actors[rank % STAND_INS] for rank in range(count)], _dispatches=Dispatches(),
            _places=[None] * count, _ended=False, _name="stand-ins", _deadline_s=600.0,
            _reservation=argparse.Namespace(world_size=count),
        )  # fmt: skip
        group.call_all("step")
        before, calls = me.cpu_times(), 3
        seconds = timed(partial(group.call_all, "step"), calls)
        after = me.cpu_times()
        cpu = (after.user + after.system - before.user - before.system) / calls
        rows.append({"ranks": count, "seconds": seconds, "driver_cpu_seconds": cpu})
    return rows


def ray_nodes(
    counts: Sequence[int], actors: Sequence[int], ranks: Sequence[int]
) -> tuple[list[Row], list[Row], list[Row]]:
    """Pretended nodes that join, then actors that start, then calls; CPU seconds of the head's own process apart."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
    try:
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        (head,) = [process for process in _descendants() if process.name() == "gcs_server"]
        nodes = []
        began = time.perf_counter()
        for count in counts:
            while len(cluster.list_all_nodes()) < count:
                cluster.add_node(num_cpus=1, object_store_memory=80 << 20, wait=False)
            while sum(node["Alive"] for node in ray.nodes()) < count:
                time.sleep(0.05)
            raylets = [process for process in _descendants() if process.name() == "raylet"]
            nodes.append(
                {
                    "nodes": count,
                    "seconds": time.perf_counter() - began,
                    "head_cpu_seconds": _cpu(head),
                    "head_mib": head.memory_info().rss / 2**20,
                    "raylet_mib": sum(process.memory_info().rss for process in raylets) / len(raylets) / 2**20,
                }
            )
        started = []

        @ray.remote(num_cpus=0, scheduling_strategy="SPREAD")
        class Empty:
            def ready(self) -> int:
                return os.getpid()

        for count in actors:
            before, began = _cpu(head), time.perf_counter()
            held = [Empty.remote() for _ in range(count)]  # type: ignore[attr-defined]
            ray.get([actor.ready.remote() for actor in held])
            started.append(
                {
                    "actors": count,
                    "seconds": time.perf_counter() - began,
                    "head_cpu_seconds": _cpu(head) - before,
                }
            )
            for actor in held:
                ray.kill(actor)
        return nodes, started, dispatch(ranks)
    finally:
        ray.shutdown()
        cluster.shutdown()


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def splitting(ranks: Iterable[int]) -> list[Row]:
    """A batch planned for all data parallel ranks by the driver: packed, 32 sequences a rank, lengths with a tail."""
    from grpo.batching.micro_batches import Packed
    from grpo.batching.sharding import plan_ranks

    rows = []
    for count in ranks:
        rng = random.Random(count)  # noqa: S311
        lengths = [min(4096, 200 + int(rng.expovariate(1 / 400))) for _ in range(SEQUENCES * count)]
        work = [float(each) for each in lengths]
        planning = Packed(8192, "modified_first_fit_decreasing", 1)
        rows.append({"ranks": count, "seconds": timed(partial(plan_ranks, lengths, work, planning, count), 1)})
    return rows


def metrics(ranks: Iterable[int]) -> list[Row]:
    """The line of a step in ranks.jsonl: five phases of every rank, on disk."""
    from grpo.telemetry.run_directory import RunDirectory

    rows = []
    folder = Path(tempfile.mkdtemp())
    try:
        for count in ranks:
            run = RunDirectory.open(
                folder / str(count), "new", name="sizing", config_yaml="grpo: {}\n", command=[], facts={}, environ={}
            )
            hosts = [f"gpu-{rank // 8:04d}" for rank in range(count)]
            phases = ("refit", "generation", "logprobs", "policy_training", "checkpoint")
            seconds = {f"timing/{phase}": [1.234567 + rank for rank in range(count)] for phase in phases}
            took = timed(partial(run.write_ranks, 1, hosts, seconds))
            run.finish("completed")
            size = (folder / str(count) / "ranks.jsonl").stat().st_size / 3
            rows.append({"ranks": count, "seconds": took, "kib_a_step": size / 1024})
    finally:
        shutil.rmtree(folder)
    return rows


def checkpoint(ranks: Iterable[int]) -> list[Row]:
    """What the driver does with what all ranks have written: merge, check that all is there, write the manifest."""
    from grpo.checkpoint.manifest import FileEntry, Manifest, PieceEntry, Shards, TensorEntry, merged

    rows = []
    for count in ranks:
        width, size = 64, 16
        of_ranks = []
        for rank in range(count):
            file = f"rank-{rank:05d}.safetensors"
            box = PieceEntry(file=file, start=[rank * size, 0], stop=[(rank + 1) * size, width])
            entry = TensorEntry(dtype="F32", shape=[count * size, width], pieces=[box])
            tensors = {f"layers.{index}.weight": entry for index in range(TENSORS)}
            of_ranks.append(Shards({file: FileEntry(bytes=1, sha256="0" * 64)}, tensors))
        began = time.perf_counter()
        whole = merged(of_ranks)
        merging = time.perf_counter() - began
        began = time.perf_counter()
        manifest = Manifest(
            step=1, sequence=1, metrics={}, fingerprint={}, files=dict(whole.files), tensors=dict(whole.tensors)
        )
        text = manifest.to_json()
        rows.append(
            {
                "ranks": count,
                "seconds": merging,
                "manifest_seconds": time.perf_counter() - began,
                "manifest_mib": len(text) / 2**20,
            }
        )
    return rows


def measure(options: argparse.Namespace) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    names, ranks = options.only, options.ranks
    if "ray" in names:
        ray = ray_nodes(options.nodes, options.actors, ranks)
        found["Ray nodes"], found["actors"], found["calls of all ranks"] = ray
    if "batch" in names:
        found["batch"] = splitting(ranks)
    if "metrics" in names:
        found["ranks.jsonl"] = metrics(ranks)
    if "checkpoint" in names:
        found["checkpoint"] = checkpoint(PIECES_OF_RANKS)
    return found


def table(title: str, rows: Sequence[Row]) -> str:
    names = list(rows[0])
    lines = [
        f"## {title}",
        "",
        "| " + " | ".join(name.replace("_", " ") for name in names) + " |",
        "|" + "---|" * len(names),
    ]
    lines += ["| " + " | ".join(f"{row[name]:.4g}" for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("ray", "batch", "metrics", "checkpoint")
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--ranks", nargs="+", type=int, default=list(RANKS))
    parser.add_argument("--nodes", nargs="+", type=int, default=list(RAY_NODES))
    parser.add_argument("--actors", nargs="+", type=int, default=list(ACTORS))
    parser.add_argument("--out", type=Path, default=Path("runs/sizing"))
    options = parser.parse_args()
    found = measure(options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "sizing-cpu.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = "\n".join(table(title, rows) for title, rows in found.items())
    machine = f"{psutil.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f} at the end"
    command = f"python -m benchmarks.sizing {' '.join(sys.argv[1:])}"
    page = f"# What grows with nodes and ranks\n\n- machine: {machine}\n- command: {command}\n\n{text}"
    (options.out / "sizing-cpu.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
