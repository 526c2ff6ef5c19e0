"""A canary as a table, with what the partition expects beside it."""

from collections.abc import Mapping
from typing import Any

from grpo.matrix.judge.machine import MEASURE_WORDS, NODE, PAIR, Machine
from grpo.matrix.judge.words import number
from grpo.matrix.schema import Partition
from grpo.matrix.show.sheet import Grid, Sheet

_UNITS = {"bf16_matmul_tflops": "TFLOP/s"}
_OTHERS = {
    "float32_matmul_gflops": ("matrix product (float32)", "GFLOP/s"),
    "memory_copy_gb_per_s": ("copy in memory", "GB/s"),
    "sm_clock_mhz": ("clock under load", "MHz"),
    "temperature_c": ("temperature", "C"),
    "power_w": ("power", "W"),
    "ecc_uncorrected": ("ECC errors, uncorrected", ""),
    "ecc_corrected": ("ECC errors, corrected", ""),
}


def canary_sheet(canary: Mapping[str, Any], partition: Partition | None, machine: Machine | None) -> Sheet:
    """One row a measure and node: least and most of the node's GPUs."""
    rates = {} if partition is None else partition.canary.model_dump()
    rows = []
    for node in canary["nodes"]:
        rows += [_row(node["host"], name, values, rates.get(name)) for name, values in _figures(node).items()]
    for pair in canary["pairs"]:
        rows.append(_row(" and ".join(pair["hosts"]), PAIR, [pair[PAIR]], rates.get(PAIR)))
    lines = [f"NCCL {canary['nccl'].get('version') or 'none'}: {_way(canary['nccl'])}", *_throttled(canary)]
    lines += [] if machine is None else [f"{machine.health}: {'; '.join(machine.problems) or 'at the rates'}"]
    return Sheet(
        f"canary of {len(canary['nodes'])} nodes in {canary['seconds']:g} s",
        lines,
        [Grid("", ("node", "", "least", "most", "unit", "partition"), rows, texts=(0, 1, 4))],
    )


def _figures(node: Mapping[str, Any]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for one in [*node.get("gpus", []), *node.get("cpus", [])]:
        for name in (*MEASURE_WORDS, *_OTHERS):
            if one.get(name) is not None:
                found.setdefault(name, []).append(one[name])
    if node.get(NODE) is not None:
        found[NODE] = [node[NODE]]
    if node.get("disk_write_mb_per_s") is not None:
        found["disk_write_mb_per_s"] = [node["disk_write_mb_per_s"]]
    return found


def _row(host: str, name: str, values: list[float], rate: float | None) -> tuple[str, ...]:
    words, unit = _OTHERS.get(name, (MEASURE_WORDS.get(name, "disk write"), _UNITS.get(name, "GB/s")))
    unit = "MB/s" if name == "disk_write_mb_per_s" else unit
    return host, words, number(min(values)), number(max(values)), unit, "" if rate is None else number(rate)


def _way(nccl: Mapping[str, Any]) -> str:
    over = ", ".join(nccl.get("interfaces") or [])
    paths = ", ".join(nccl.get("paths") or [])
    words = f"network {nccl.get('transport', 'unknown')}"
    words += f" ({over})" if over else ""
    return words + (f", channels {paths}" if paths else "")


def _throttled(canary: Mapping[str, Any]) -> list[str]:
    return [
        f"{node['host']} GPU {gpu.get('index')} was held back: {', '.join(gpu['throttle'])}"
        for node in canary["nodes"]
        for gpu in node.get("gpus", [])
        if gpu.get("throttle")
    ]
