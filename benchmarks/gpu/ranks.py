"""The workers over several GPUs of one host, a process each, against bare loops over the same ranks; CPU offload."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu.bare_ranks import BareFSDP, BareMegatronRanks
from benchmarks.gpu.clock import alternately, seconds
from benchmarks.gpu.parts import Record, Size, allocated, comparison, memory_record
from benchmarks.gpu.plan import dimensions_of, planned_training_bytes
from benchmarks.gpu.settings import worker_config
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.work import random_batch, update_flops
from benchmarks.paired import Spread
from grpo.config.schema import Config
from grpo.models.sharded_loading import shape_of_model
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.parallel import ParallelContext
from grpo.workers.protocol import StatefulPolicy

OFFLOADED_PACKS = 4  # each takes all parameters to the GPU twice, and all gradients to the host
ON_THE_CPU = ("norm", "clip", "step")  # of the optimizer, once an update
COPIED_BYTES = 1 << 30  # to measure the bus with
DEVIATION = 0.02  # of random weights


def over_ranks(backend: str, shape: Shape, size: Size, deadline: float) -> Iterator[Record]:
    """Every rank calls this; each yields the same records."""
    device = join(size)
    ranks, cap = dist.get_world_size(), size.caps[0]
    config = worker_config(cap, precision=size.precision, backend=backend, gpus=ranks)
    about = {"shape": shape.title, "backend": backend, "cap": cap, "gpus": ranks}
    dimensions = dimensions_of(shape)
    batch = random_batch(cap, ranks * size.tokens // cap, dimensions.vocab)
    before = allocated(size)
    ours = _MAKERS[backend](shape, config, device)
    yield about | memory_record(ours, batch, planned_training_bytes(shape, config), size, before=before)
    bare: Any = (BareFSDP if backend == "dtensor" else BareMegatronRanks)(ours, device)
    packs, tokens = bare.packs(batch), int(batch.mask.sum())
    found = alternately(
        {"ours": lambda: ours.train(batch), "bare": lambda: bare.update(packs, tokens)},
        rounds=size.rounds, device=size.device, warm_up=1, deadline=deadline, agreed=agreed,
    )  # fmt: skip
    yield about | comparison(found, update_flops(dimensions, batch), batch, len(packs), gpus=ranks)
    dist.destroy_process_group()


def offloaded(shape: Shape, size: Size, deadline: float) -> Iterator[Record]:
    """The PyTorch worker in one process, parameters, gradients and optimizer on the CPU."""
    device = join(size)
    cap = size.caps[0]
    config = worker_config(cap, precision=size.precision, gpus=1, cpu_offload=True)
    about = {"shape": shape.title, "backend": "dtensor, offloaded to the CPU", "cap": cap}
    batch = random_batch(cap, OFFLOADED_PACKS, dimensions_of(shape).vocab)
    before = allocated(size)
    ours = _sharded(shape, config, device)
    yield about | {"kind": "began", "seconds": seconds(lambda: ours.train(batch), size.device)}
    yield about | memory_record(ours, batch, planned_training_bytes(shape, config), size, before=before)
    on_the_cpu: dict[str, list[float]] = {name: [] for name in ON_THE_CPU}
    for name, times in on_the_cpu.items():
        _note_seconds(ours._optimizer, name, times)  # noqa: SLF001 (there is nothing public between the parts)
    found = alternately({"ours": lambda: ours.train(batch)}, rounds=3, device=size.device, warm_up=0, deadline=deadline)
    yield about | comparison(found, update_flops(dimensions_of(shape), batch), batch, OFFLOADED_PACKS)
    parameters = sum(4 * each.numel() for _, each in ours._masters.named_parameters())  # noqa: SLF001
    yield about | {
        "kind": "offloaded", "packs": OFFLOADED_PACKS, "threads": torch.get_num_threads(),
        "seconds": {name: Spread.of(times).median if times else 0.0 for name, times in on_the_cpu.items()},
        "update": Spread.of(found["ours"]).median, "parameter_bytes": parameters, **_bus(size),
    }  # fmt: skip
    dist.destroy_process_group()


def _note_seconds(owner: Any, name: str, times: list[float]) -> None:
    """Have a method note what each of its calls takes, on the CPU."""
    original = getattr(owner, name)

    def timed(*args: Any) -> Any:
        started = time.perf_counter()
        result = original(*args)
        times.append(time.perf_counter() - started)
        return result

    setattr(owner, name, timed)


def _bus(size: Size) -> dict[str, float]:
    """Bytes a second between pinned memory and the GPU; none on a CPU."""
    if size.device != "cuda":
        return {}
    host = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    ways = {"to_gpu": (device, host), "to_host": (host, device)}
    found = {}
    for name, (target, source) in ways.items():

        def copy(target: Tensor = target, source: Tensor = source) -> None:
            target.copy_(source, non_blocking=True)

        copy()
        found[name] = COPIED_BYTES / min(seconds(copy, size.device) for _ in range(3))
    return found


def join(size: Size) -> torch.device:
    """The device of this process and the default process group, over the ranks that torch's launcher names."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    limit = timedelta(seconds=120)
    if size.device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if size.device == "cuda" else "gloo"
    if size.device == "cuda" and world == 1:
        backend = "cpu:gloo,cuda:nccl"
    if world == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=limit)  # type: ignore[attr-defined]
    else:
        dist.init_process_group(backend, timeout=limit)
    return torch.device("cuda", rank) if size.device == "cuda" else torch.device("cpu")


def agreed(go_on: bool) -> bool:  # noqa: FBT001
    """Whether all ranks want to go on: their clocks differ."""
    value = torch.tensor(int(go_on), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(value, op=dist.ReduceOp.MIN)
    return bool(value.item())


def _sharded(shape: Shape, config: Config, device: torch.device) -> DTensorPolicy:
    context = ParallelContext.create(config.policy, device.type)
    model = shape_of_model(shape.folder)
    if len(model.model.layers) != shape.layers:
        del model.model.layers[shape.layers :]
        model.config.num_hidden_layers = shape.layers
    worker = DTensorPolicy(model, config, device=device.type, parallel=context)
    execution: Any = worker._execution  # noqa: SLF001
    parameters = dict(execution.compute.model.named_parameters())
    execution.fill(execution.compute, ((name, _reader(each.shape, device)) for name, each in parameters.items()))
    return worker


def _reader(shape: torch.Size, device: torch.device) -> Callable[[tuple[slice, ...]], Tensor]:
    def read(part: tuple[slice, ...]) -> Tensor:
        sizes = [each.stop - each.start for each in part]
        return torch.ones(sizes, device=device) if len(shape) == 1 else torch.randn(sizes, device=device) * DEVIATION

    return read


class RandomWeights(Mapping[str, Tensor]):
    """Random weights by transformers' names, made when they are asked for, the same on every rank."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._shapes = {name: each.shape for name, each in shape_of_model(shape.folder).state_dict().items()}
        self._device = device

    def __getitem__(self, name: str) -> Tensor:
        sizes = self._shapes[name]
        if len(sizes) == 1:
            return torch.ones(sizes, device=self._device)
        generator = torch.Generator(self._device).manual_seed(sum(name.encode()))
        return torch.randn(sizes, device=self._device, generator=generator) * DEVIATION

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def _megatron(shape: Shape, config: Config, device: torch.device) -> StatefulPolicy:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from grpo.models.megatron.shape import ModelShape
        from grpo.workers.megatron.policy import MegatronPolicy

    return MegatronPolicy(ModelShape.of(shape.config()), RandomWeights(shape, device), config, device=device.type)


_MAKERS: dict[str, Callable[[Shape, Config, torch.device], StatefulPolicy]] = {
    "dtensor": _sharded,
    "megatron": _megatron,
}
