"""Where an update's device time goes: seconds of each kind of work, from torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from grpo.models.dimensions import Dimensions

# Products by name, and which of their inputs is the left factor. The right one follows.
MATMULS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::addmm_": 1, "aten::baddbmm": 1}
ATTENTION = "attention"
PROJECTIONS = "attention's projections"
MLP = "MLP's products"
MLP_OTHER = "MLP's activation"
HEAD = "output layer's products"
HEAD_OTHER = "log-probs of logits"
OPTIMIZER = "optimizer"
GRADIENTS = "adding and rounding of weights and gradients"
NORMS = "norms and rotary embeddings"
OTHER = "residuals, embedding, rest"
KINDS = (PROJECTIONS, MLP, HEAD, ATTENTION, MLP_OTHER, HEAD_OTHER, GRADIENTS, OPTIMIZER, NORMS, OTHER)
# What names tell. Kernels launched from Python count for the autograd function that launches them.
NAMED = {
    "adam": OPTIMIZER, "_foreach_norm": OPTIMIZER, "multi_tensor": OPTIMIZER, "flash": ATTENTION, "varlen": ATTENTION,
    "scaled_dot_product": ATTENTION,
    "rmsnorm": NORMS, "rms_norm": NORMS, "rotary": NORMS, "swiglu": MLP_OTHER, "tokenlogprobs": HEAD_OTHER,
    "vocabularyparallel": HEAD_OTHER,
}  # fmt: skip

Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Kind:
    """One kind's share of a profiled piece of work."""

    seconds: float
    flops: float  # of matrix products, as their shapes say; 0 for other kernels


def kind_of(name: str, shapes: Shapes, dimensions: Dimensions, weights: frozenset[tuple[int, ...]]) -> str:
    """What an operation with inputs of these shapes is for. `weights` are the shapes of the model's parameters."""
    lowered = name.lower()
    named = [kind for part, kind in NAMED.items() if part in lowered]
    if named:
        return named[0]
    given = [tuple(shape) for shape in shapes if shape and all(isinstance(size, int) for size in shape)]
    if "_foreach" in lowered or (name not in MATMULS and given and all(shape in weights for shape in given)):
        return GRADIENTS  # a norm's weight is multiplied with hidden states too, but that is no work on weights alone
    sizes = {size for shape in given for size in shape}
    if dimensions.vocab in sizes:
        return HEAD if name in MATMULS else HEAD_OTHER
    if sizes & {dimensions.intermediate, 2 * dimensions.intermediate}:  # Megatron has gate and up in one
        return MLP if name in MATMULS else MLP_OTHER
    return PROJECTIONS if name in MATMULS else OTHER


def product_flops(name: str, shapes: Shapes) -> float:
    """2 m k n of a product, from the shapes of what it was given."""
    if name not in MATMULS:
        return 0.0
    left, right = shapes[MATMULS[name] : MATMULS[name] + 2]
    batch = left[0] if len(left) == 3 else 1
    return 2.0 * batch * left[-2] * left[-1] * right[-1]


def by_kind(
    events: Iterable[Any], dimensions: Dimensions, parameters: Iterable[torch.Tensor], device: str
) -> dict[str, Kind]:
    """Sums of a profile's events, which `key_averages(group_by_input_shape=True)` gave."""
    weights = frozenset(tuple(each.shape) for each in parameters)
    seconds = dict.fromkeys(KINDS, 0.0)
    flops = dict.fromkeys(KINDS, 0.0)
    for event in events:
        own = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        if own <= 0 or (device == "cuda" and str(event.device_type).endswith("CUDA")):
            continue  # a kernel by itself: its time is that of the operation that launched it
        shapes = [each for each in event.input_shapes if isinstance(each, list | tuple)]
        kind = kind_of(event.key, shapes, dimensions, weights)
        seconds[kind] += own / 1e6
        flops[kind] += event.count * product_flops(event.key, shapes)
    return {name: Kind(seconds[name], flops[name]) for name in KINDS}


def profiled(
    work: Callable[[], object], dimensions: Dimensions, parameters: Iterable[torch.Tensor], device: str
) -> dict[str, Kind]:
    """Run `work` once under the profiler."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities, record_shapes=True, acc_events=True) as found:
        work()
        if device == "cuda":
            torch.cuda.synchronize()
    return by_kind(found.key_averages(group_by_input_shape=True), dimensions, parameters, device)
