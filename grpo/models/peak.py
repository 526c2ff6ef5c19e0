"""How fast a GPU multiplies at best: the denominator of model FLOP utilisation."""

from __future__ import annotations

from typing import NamedTuple


class Peak(NamedTuple):
    """Of a GPU whose CUDA name has `name` in it."""

    name: str
    tflops: float  # dense bfloat16, without sparsity
    source: str


# The first that fits counts, so the longer of two names comes first.
PEAKS = (
    Peak("B200", 2250.0, "NVIDIA HGX B200 datasheet, half of the sparse 4.5 PFLOP/s"),
    Peak("GH200", 989.4, "NVIDIA GH200 datasheet, half of the sparse 1,979 TFLOP/s"),
    Peak("H200 NVL", 835.5, "NVIDIA H200 datasheet, half of the sparse 1,671 TFLOP/s"),
    Peak("H200", 989.4, "NVIDIA H200 datasheet, half of the sparse 1,979 TFLOP/s"),
    Peak("H100 NVL", 835.5, "NVIDIA H100 datasheet, half of the sparse 1,671 TFLOP/s"),
    Peak("H100 PCIe", 756.5, "NVIDIA H100 PCIe datasheet, half of the sparse 1,513 TFLOP/s"),
    Peak("H100", 989.4, "NVIDIA H100 datasheet, SXM5, half of the sparse 1,979 TFLOP/s"),
    Peak("A100", 312.0, "NVIDIA A100 datasheet"),
    Peak("L40S", 362.05, "NVIDIA L40S datasheet"),
)


def datasheet_peak(device_name: str) -> Peak | None:
    """By the name that `torch.cuda.get_device_name` gives; None for a GPU that is not in the table, and for a CPU."""
    return next((peak for peak in PEAKS if peak.name in device_name), None)
