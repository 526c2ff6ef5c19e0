"""Rates of one GPU, or of the CPU: matrix products and copies."""

import threading
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch

from grpo.matrix.canary.nvidia import read_gpu

_GPU_SIDE = 8192
_GPU_BYTES = 1 << 30
_HOST_BYTES = 256 << 20
_GPU_PRODUCTS = 20  # a batch: about 30 ms
_BATCHES = 7
_CPU_SIDE = 1024
_CPU_BYTES = 64 << 20


def gpu_rates(index: int) -> dict[str, Any]:
    """One GPU: bfloat16 products of 8192^3 (TFLOP/s), copies (10^9 B/s), and its state under load.

    Each rate is the median of a few batches after one that is not counted. Takes about two seconds and 4 GiB.
    """
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    properties = torch.cuda.get_device_properties(device)
    rates: dict[str, Any] = {"index": index, "name": properties.name}
    rates |= _gpu_products(device, f"GPU-{properties.uuid}")
    source = torch.empty(_GPU_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    host = torch.empty(_HOST_BYTES, dtype=torch.uint8, pin_memory=True)
    part = source[:_HOST_BYTES]

    def rate(copy: Callable[[], object], count: int, size: int) -> float:
        return size / _gpu_seconds(copy, count) / 1e9

    rates["device_copy_gb_per_s"] = rate(lambda: target.copy_(source), 10, _GPU_BYTES)
    rates["host_to_device_gb_per_s"] = rate(lambda: part.copy_(host, non_blocking=True), 4, _HOST_BYTES)
    rates["device_to_host_gb_per_s"] = rate(lambda: host.copy_(part, non_blocking=True), 4, _HOST_BYTES)
    return rates


def _gpu_products(device: torch.device, uuid: str) -> dict[str, Any]:
    # Random numbers: a product of zeros draws less power, and clocks higher.
    left = torch.randn(_GPU_SIDE, _GPU_SIDE, device=device, dtype=torch.bfloat16)
    right = torch.randn_like(left)
    out = torch.empty_like(left)

    def product() -> object:
        return torch.matmul(left, right, out=out)

    state: dict[str, Any] = {}
    reader = threading.Thread(target=lambda: state.update(read_gpu(uuid)))
    seconds = _gpu_seconds(product, _GPU_PRODUCTS)
    reader.start()
    while reader.is_alive():  # its clocks are those under load
        _gpu_batch(product, _GPU_PRODUCTS)
    return {"bf16_matmul_tflops": 2 * _GPU_SIDE**3 / seconds / 1e12, **state}


def _gpu_seconds(work: Callable[[], object], count: int) -> float:
    """Seconds of one call, in batches of `count`."""
    _gpu_batch(work, count)
    return median(_gpu_batch(work, count) for _ in range(_BATCHES)) / count


def _gpu_batch(work: Callable[[], object], count: int) -> float:
    cuda: Any = torch.cuda  # its events have no types
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def cpu_rates() -> dict[str, Any]:
    """The CPU with torch's threads: float32 products of 1024^3 (GFLOP/s) and a copy in memory (10^9 B/s)."""
    left, right = torch.randn(_CPU_SIDE, _CPU_SIDE), torch.randn(_CPU_SIDE, _CPU_SIDE)
    source = torch.ones(_CPU_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    product, copy = _cpu_seconds(lambda: left @ right), _cpu_seconds(lambda: target.copy_(source))
    return {
        "threads": torch.get_num_threads(),
        "float32_matmul_gflops": 2 * _CPU_SIDE**3 / product / 1e9,
        "memory_copy_gb_per_s": _CPU_BYTES / copy / 1e9,
    }


def _cpu_seconds(work: Callable[[], object]) -> float:
    work()
    taken = []
    for _ in range(_BATCHES):
        started = perf_counter()
        work()
        taken.append(perf_counter() - started)
    return median(taken)
