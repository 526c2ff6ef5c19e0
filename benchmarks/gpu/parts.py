"""The measurements of the policy workers. Each yields its records as soon as it has them."""

from __future__ import annotations

import gc
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.bare import BareLoop
from benchmarks.gpu.clock import alternately, seconds
from benchmarks.gpu.kinds import profiled
from benchmarks.gpu.plan import GPU_MEMORY, PEAK_FLOPS, dimensions_of, planned_training_bytes
from benchmarks.gpu.settings import worker_config
from benchmarks.gpu.shapes import SHAPES_BY_NAME, Shape
from benchmarks.gpu.work import packs_of, pass_flops, random_batch, update_flops
from benchmarks.paired import Spread, ratios
from grpo.batching.batch import Batch
from grpo.config.schema import Config
from grpo.models.dimensions import Dimensions
from grpo.models.flops import Flops
from grpo.models.megatron.shape import ModelShape
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.protocol import StatefulPolicy

Record = dict[str, Any]
LARGEST_SHARE = 0.93  # of a GPU's memory that a plan may fill: the allocator leaves holes
PROFILED_PACKS = 4
ROOM_FOR_PAIRS = 100 << 30  # bytes of a GPU below which two states of all layers of a pair do not fit


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    device: str
    precision: str
    small: Shape
    large: Shape
    caps: tuple[int, ...]  # tokens of a pack
    tokens: int  # of an update
    rounds: int
    paired_layers: int  # of the large shape, where two loops share the GPU
    layers: tuple[int, ...]  # of the large shape, where one has it alone: the first that the plan lets fit

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.precision)
        return found


H200 = Size("cuda", "bfloat16", SHAPES_BY_NAME["1b"], SHAPES_BY_NAME["8b"], (4096, 8192), 49152, 5, 8, (32, 24, 20, 16))
TINY = Size("cpu", "float32", SHAPES_BY_NAME["tiny"], SHAPES_BY_NAME["tiny"], (64, 128), 256, 2, 1, (2,))


@dataclass(frozen=True)
class Side:
    """A worker to measure, and how a bare loop like it is made."""

    backend: str
    make: Callable[[Shape, Config, Size], StatefulPolicy]
    bare: Callable[[Shape, StatefulPolicy, Size], Any]
    parameters: Callable[[StatefulPolicy], list[torch.Tensor]]


def dtensor_side() -> Side:
    def parameters(policy: StatefulPolicy) -> list[torch.Tensor]:
        return [each for _, each in policy.export_weights()]

    return Side(
        "dtensor",
        lambda shape, config, size: DTensorPolicy(shape.build(size.device), config, device=size.device),
        lambda shape, _ours, size: BareLoop(shape.build(size.device), size.dtype),
        parameters,
    )


def megatron_side() -> Side:
    """Imports Megatron-Core."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from benchmarks.gpu.bare_megatron import BareMegatron
        from grpo.workers.megatron.policy import MegatronPolicy

    def make(shape: Shape, config: Config, size: Size) -> StatefulPolicy:
        model = shape.build(size.device)
        source = {name: each.detach() for name, each in model.state_dict().items()}
        return MegatronPolicy(ModelShape.of(model.config), source, config, device=size.device)

    def parameters(policy: Any) -> list[torch.Tensor]:
        return list(policy._trained.model.parameters())  # noqa: SLF001 (its fused weights have no public names)

    def bare(shape: Shape, ours: StatefulPolicy, size: Size) -> Any:
        device = torch.device("cuda", torch.cuda.current_device()) if size.device == "cuda" else torch.device("cpu")
        return BareMegatron(ModelShape.of(shape.config()), parameters(ours), size.dtype, device)

    return Side("megatron", make, bare, parameters)


def paired_layers(size: Size) -> int:
    """Of the large shape, for two loops on this GPU: half as many on one of 80 GB."""
    small = size.device == "cuda" and torch.cuda.get_device_properties(0).total_memory < ROOM_FOR_PAIRS
    return size.paired_layers // 2 if small else size.paired_layers


def paired(side: Side, shape: Shape, size: Size, deadline: float, *, caps: tuple[int, ...] = ()) -> Iterator[Record]:
    """A worker and its bare loop in turn, and what memory the worker takes beside its plan."""
    bare: list[Any] = []
    for cap in caps or size.caps:
        yield from _paired_at(cap, bare, side, shape, size, deadline=deadline)
        free(size)


def _paired_at(cap: int, made: list[Any], side: Side, shape: Shape, size: Size, *, deadline: float) -> Iterator[Record]:
    """`made` holds the bare loop, once there is one: the first worker's memory is measured before."""
    config = worker_config(cap, precision=size.precision, backend=side.backend)
    about = {"shape": shape.title, "backend": side.backend, "cap": cap}
    dimensions = dimensions_of(shape)
    batch = random_batch(cap, size.tokens // cap, dimensions.vocab)
    before = allocated(size)
    ours = side.make(shape, config, size)
    yield about | memory_record(ours, batch, planned_training_bytes(shape, config), size, before=before)
    yield about | {"kind": "waits", "waits": _waits(ours, batch, size)}
    if not made:
        made.append(side.bare(shape, ours, size))
    bare, packs = made[0], packs_of(batch, cap, size.device)
    sides = {"ours": lambda: ours.train(batch), "bare": lambda: bare.update(packs)}
    found = alternately(sides, rounds=size.rounds, device=size.device, deadline=deadline)
    yield about | comparison(found, update_flops(dimensions, batch), batch, len(packs))
    yield about | _scoring(ours, bare, batch, packs, size, flops=pass_flops(dimensions, batch).total)
    few = random_batch(cap, PROFILED_PACKS, dimensions.vocab, seed=1)
    few_packs = packs_of(few, cap, size.device)
    for name, work in (("ours", lambda: ours.train(few)), ("bare", lambda: bare.update(few_packs))):
        shares = _shares(work, dimensions, side.parameters(ours), update_flops(dimensions, few), size)
        yield about | shares | {"side": name}


def alone(side: Side, size: Size, deadline: float) -> Iterator[Record]:
    """The worker on as many layers of the large shape as the plan says fit."""
    cap = size.caps[0]
    for layers in size.layers:
        shape = size.large.with_layers(layers)
        config = worker_config(cap, precision=size.precision, backend=side.backend)
        about = {"shape": shape.title, "backend": side.backend, "cap": cap}
        plan = planned_training_bytes(shape, config)
        if sum(plan.values()) > LARGEST_SHARE * GPU_MEMORY:
            yield about | {"kind": "plan", "planned": plan, "fits": False}
            continue
        batch = random_batch(cap, size.tokens // cap, dimensions_of(shape).vocab)
        ours, found = _trained(lambda: side.make(shape, config, size), batch, plan, size)  # noqa: B023 (called at once)
        if ours is None:
            free(size)
            yield about | {"kind": "plan", "planned": plan, "fits": True, "failed": found}
            continue
        yield about | found
        yield from _speed_alone(ours, about, side, shape, size, deadline=deadline)
        return


def _speed_alone(
    ours: StatefulPolicy, about: Record, side: Side, shape: Shape, size: Size, *, deadline: float
) -> Iterator[Record]:
    cap, dimensions = size.caps[0], dimensions_of(shape)
    batch = random_batch(cap, size.tokens // cap, dimensions.vocab)
    sides = {"ours": lambda: ours.train(batch)}
    found = alternately(sides, rounds=max(2, size.rounds // 2), device=size.device, warm_up=0, deadline=deadline)
    yield about | comparison(found, update_flops(dimensions, batch), batch, size.tokens // cap)
    few = random_batch(cap, PROFILED_PACKS, dimensions.vocab, seed=1)
    flops = update_flops(dimensions, few)
    yield about | _shares(lambda: ours.train(few), dimensions, side.parameters(ours), flops, size) | {"side": "ours"}


def _trained(
    make: Callable[[], StatefulPolicy], batch: Batch, plan: Mapping[str, float], size: Size
) -> tuple[StatefulPolicy | None, Any]:
    """A worker that has trained and its record of memory, or None and what the allocator said where it did not fit."""
    try:
        before = allocated(size)
        ours = make()
        return ours, memory_record(ours, batch, plan, size, before=before)
    except torch.OutOfMemoryError as error:
        return None, str(error)


def comparison(found: Mapping[str, list[float]], flops: Flops, batch: Batch, packs: int, *, gpus: int = 1) -> Record:
    """Seconds of both sides, their ratio round by round, and each side's MFU. `packs` are of one GPU."""
    record: Record = {
        "kind": "training",
        "tokens": sum(batch.lengths.tolist()) - len(batch),
        "trained_tokens": int(batch.mask.sum()),
        "sequences": len(batch),
        "packs": packs,
        "flops": {"layers": flops.layers, "attention": flops.attention, "head": flops.head, "total": flops.total},
        "seconds": {name: list(values) for name, values in found.items()},
        "mfu": {name: flops.total / Spread.of(values).median / (gpus * PEAK_FLOPS) for name, values in found.items()},
    }
    if "bare" in found:
        record["ratio"] = _ratio(found["ours"], found["bare"])
    return record


def _ratio(ours: list[float], bare: list[float]) -> Record:
    """Of medians, and the spread of the rounds' own ratios."""
    each = ratios(ours, bare)
    return {"of_medians": Spread.of(ours).median / Spread.of(bare).median, "low": each.low, "high": each.high}


def _scoring(ours: StatefulPolicy, bare: Any, batch: Batch, packs: list[Any], size: Size, *, flops: float) -> Record:
    """The log-prob pass against a forward pass with bfloat16 logits, all of a pack at once, and against one without."""
    weight = bare.output_weight

    @torch.no_grad()
    def with_logits() -> None:
        for pack in packs:
            bare.states(pack) @ weight.T

    @torch.no_grad()
    def without() -> None:
        for pack in packs:
            bare.states(pack)

    sides = {"ours": lambda: ours.logprobs(batch), "bare": with_logits, "bare_without_head": without}
    found = alternately(sides, rounds=size.rounds, device=size.device)
    return {
        "kind": "scoring",
        "seconds": found,
        "ratio": _ratio(found["bare"], found["ours"]),  # of speeds
        "mfu": {name: flops / Spread.of(found[name]).median / PEAK_FLOPS for name in ("ours", "bare")},
    }


def memory_record(ours: StatefulPolicy, batch: Batch, plan: Mapping[str, float], size: Size, *, before: int) -> Record:
    """Peak of three updates, the first of which makes the optimizer's state, beside the plan."""
    if size.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        ours.train(batch)
    measured = torch.cuda.max_memory_allocated() - before if size.device == "cuda" else 0
    planned = sum(plan.values())
    return {
        "kind": "memory",
        "planned": dict(plan),
        "planned_total": planned,
        "measured": measured,
        "error": planned / measured - 1 if measured else None,
        "reserved": torch.cuda.max_memory_reserved() if size.device == "cuda" else 0,
    }


def _waits(ours: StatefulPolicy, batch: Batch, size: Size) -> Record:
    """Where an update waits for the GPU, as torch's debugging of synchronisation sees it: place -> times."""
    if size.device != "cuda":
        return {}
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ours.train(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in caught if "synchroniz" in str(each.message)]
    return dict(Counter(f"{each.filename}:{each.lineno}" for each in waits))


def _shares(
    work: Callable[[], object], dimensions: Dimensions, parameters: list[torch.Tensor], flops: Flops, size: Size
) -> Record:
    work()
    wall = seconds(work, size.device)
    kinds = profiled(work, dimensions, parameters, size.device)
    return {
        "kind": "shares",
        "packs": PROFILED_PACKS,
        "wall": wall,
        "kinds": {kind: {"seconds": found.seconds, "flops": found.flops} for kind, found in kinds.items()},
        "attention_flops": flops.attention,
        "model_flops": flops.total,
    }


def allocated(size: Size) -> int:
    return torch.cuda.memory_allocated() if size.device == "cuda" else 0


def free(size: Size) -> None:
    """Give back what nothing refers to."""
    gc.collect()
    if size.device == "cuda":
        torch.cuda.empty_cache()


def limits(size: Size) -> Iterator[Record]:
    """What this device does at best: products of the layers' own sizes, copies, attention."""
    square = 8192 if size.device == "cuda" else 64
    dims = dimensions_of(size.large)
    rows = size.caps[0]
    products = {
        f"{square}^3": (square, square, square),
        "query projection": (rows, dims.hidden, dims.query_width),
        "gate projection": (rows, dims.hidden, dims.intermediate),
        "down projection": (rows, dims.intermediate, dims.hidden),
        "gradient of gate": (dims.hidden, rows, dims.intermediate),
        "logits of a chunk": (min(rows, 1024), dims.hidden, dims.vocab),
    }
    rates = {}
    for name, (m, k, n) in products.items():
        left, right = (torch.randn(each, device=size.device, dtype=size.dtype) for each in ((m, k), (k, n)))
        rates[name] = 2.0 * m * k * n / _median(lambda: left @ right, size)  # noqa: B023
    source = torch.zeros(2**28 if size.device == "cuda" else 2**16, device=size.device)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / _median(lambda: target.copy_(source), size)
    yield {"kind": "limits", "products": rates, "copy": copied, "shape": size.large.title}


def _median(work: Callable[[], object], size: Size) -> float:
    for _ in range(3):
        work()

    def several() -> None:
        for _ in range(10):
            work()

    return Spread.of([seconds(several, size.device) / 10 for _ in range(3)]).median


def deadline_in(left: float) -> float:
    """`time.monotonic()` after which no further round is begun."""
    return time.monotonic() + left
