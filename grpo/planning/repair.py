"""What to change in a configuration that does not fit, found by planning again with each change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from grpo.config.schema import Config
from grpo.errors import ConfigError
from grpo.planning.memory import chunk_tokens
from grpo.planning.plan import Plan
from grpo.planning.resident import Resident
from grpo.workers.policy.options import needs_reference

Attempt = Callable[[Sequence[str]], Plan]  # plans the recipe with further overrides; ConfigError: not allowed
Family = tuple[tuple[str, ...], ...]  # values of one key (or of several) as overrides, the nearest first

_MAX_NODES = 64
_SMALLEST_CHUNK = 128


@dataclass(frozen=True)
class Change:
    """Overrides that make a configuration fit, and what it is then."""

    overrides: tuple[str, ...]
    plan: Plan


def changes_that_fit(plan: Plan, attempt: Attempt) -> list[Change]:
    """The nearest value of each key that alone makes it fit, smallest change first; else several keys together.

    Small is, in this order: what costs only time (recomputing, smaller micro-batches and chunks, the engine's share),
    other parallel degrees on the same GPUs, several keys of the first kind together, more GPUs. Where all that is not
    enough, a pair of any two keys; then all of the first kind with more nodes.
    """
    families = list(_families(plan))
    alone = [found for family in families if (found := _first(family, attempt)) is not None]
    if any(change.plan.gpus == plan.gpus for change in alone):
        return alone
    spared = _spared(list(_free_families(plan)), attempt) or (_on_more_gpus(plan, attempt) if alone else None)
    if spared is not None and (not alone or spared.plan.gpus < min(each.plan.gpus for each in alone)):
        return [spared, *alone]
    if alone:
        return alone
    pairs = (
        (*one, *other)
        for at, family in enumerate(families)
        for before in families[:at]
        for one, other in product(before, family)
    )
    found = _first(pairs, attempt) or _on_more_gpus(plan, attempt)
    return [] if found is None else [found]


def _spared(free: Sequence[Family], attempt: Attempt, fixed: tuple[str, ...] = ()) -> Change | None:
    """Of all keys that cost only time, each as far as it goes, those that are needed, and no further than they must.

    `fixed` is set besides and stays.
    """
    chosen = {at: family[-1] for at, family in enumerate(free) if family}

    def tried(values: dict[int, tuple[str, ...]]) -> Change | None:
        return _first([(*(each for at in sorted(values) for each in values[at]), *fixed)], attempt)

    best = tried(chosen)
    if best is None:
        return None
    for at in sorted(chosen, reverse=True):
        rest = {key: value for key, value in chosen.items() if key != at}
        nearer = [rest, *({**chosen, at: value} for value in free[at][:-1])]
        for values in nearer:
            found = tried(values)
            if found is not None:
                best, chosen = found, values
                break
    return best


def _on_more_gpus(plan: Plan, attempt: Attempt) -> Change | None:
    gpus, nodes = _more_gpus(plan)
    whole = tuple((f"cluster.gpus_per_node={_of_node(plan)}", *each) for each in nodes) if gpus else nodes
    free = list(_free_families(plan))
    for more in (*gpus, *whole):
        found = _spared(free, attempt, more)
        if found is not None:
            return found
    return None


def _first(candidates: Iterable[tuple[str, ...]], attempt: Attempt) -> Change | None:
    for overrides in candidates:
        try:
            plan = attempt(overrides)
        except ConfigError:  # the change breaks a rule of the configuration: not one to propose
            continue
        if plan.fits:
            return Change(overrides, plan)
    return None


def _free_families(plan: Plan) -> Iterator[Family]:
    """What costs only time, and what a rank of the policy has less of with more of it."""
    config, parallel = plan.setting.config, plan.setting.parallel
    section = _section(plan)
    if plan.setting.colocated and plan.setting.resident == Resident.CONFIGURED:
        yield _placement(config)
    if not parallel.recompute:
        yield _set(f"{section}.activation_checkpointing", ["true"])
    if parallel.tensor > 1 and not parallel.sequence_parallel:
        yield _set(f"{section}.sequence_parallel", ["true"])
    yield from _micro_batches(config)
    chunk = chunk_tokens(plan.setting)
    yield _set("policy.logprob_chunk_size", _halved(chunk, _SMALLEST_CHUNK))


def _section(plan: Plan) -> str:
    return "policy.megatron_cfg" if plan.setting.parallel.backend == "megatron" else "policy.dtensor_cfg"


def _families(plan: Plan) -> Iterator[Family]:
    config = plan.setting.config
    policy, cluster = config.policy, config.cluster
    parallel, section = plan.setting.parallel, _section(plan)
    megatron = parallel.backend == "megatron"
    yield from _free_families(plan)
    if policy.generation.vllm_cfg.kv_cache_memory_bytes is not None:
        yield _set("policy.generation.vllm_cfg.kv_cache_memory_bytes", ["null"])
    vllm = policy.generation.vllm_cfg
    share = vllm.gpu_memory_utilization
    shares = sorted((at / 20 for at in range(2, 20)), key=lambda each: (abs(each - share), each))
    yield _set("policy.generation.vllm_cfg.gpu_memory_utilization", [f"{each:g}" for each in shares if each != share])
    yield _set("policy.generation.vllm_cfg.max_num_seqs", _halved(plan.engine.max_sequences, 32))
    node = cluster.gpus_per_node
    yield _set("policy.generation.vllm_cfg.tensor_parallel_size", _doubled(vllm.tensor_parallel_size, node))
    tensor = "tensor_model_parallel_size" if megatron else "tensor_parallel_size"
    yield _set(f"{section}.{tensor}", _doubled(parallel.tensor, node))
    if megatron:
        yield _set(
            f"{section}.pipeline_model_parallel_size", _doubled(parallel.pipeline, plan.setting.model.dimensions.layers)
        )
    yield from _more_gpus(plan)


def _more_gpus(plan: Plan) -> tuple[Family, Family]:
    """More GPUs of the node, where there is one alone; more nodes."""
    cluster = plan.setting.config.cluster
    gpus = _doubled(cluster.gpus_per_node, _of_node(plan)) if cluster.num_nodes == 1 else []
    return _set("cluster.gpus_per_node", gpus), _set("cluster.num_nodes", _doubled(cluster.num_nodes, _MAX_NODES))


def _of_node(plan: Plan) -> int:
    """GPUs that a node of the partition has."""
    return int(plan.setting.partition.gpus_per_node.value)


def _micro_batches(config: Config) -> Iterator[Family]:
    policy = config.policy
    for section, cfg in (
        ("policy.sequence_packing", policy.sequence_packing),
        ("policy.dynamic_batching", policy.dynamic_batching),
    ):
        if cfg.enabled:
            for name, rows in (("train_mb_tokens", cfg.train_mb_tokens), ("logprob_mb_tokens", cfg.logprob_mb_tokens)):
                assert rows is not None, "filled in when the configuration was resolved"
                yield _set(f"{section}.{name}", _halved(rows, policy.max_total_sequence_length))
            return
    yield _set("policy.train_micro_batch_size", _halved(policy.train_micro_batch_size, 1))
    yield _set("policy.logprob_batch_size", _halved(policy.logprob_batch_size, 1))


def _placement(config: Config) -> Family:
    """One more key of placement with each, the cheapest first."""
    settings = config.policy.generation.colocated
    asked = [
        ("policy.generation.colocated.sleep_level=2", settings.sleep_level == 2),
        ("policy.offload_reference=true", config.policy.offload_reference or not needs_reference(config)),
        ("policy.generation.colocated.offload_optimizer=true", settings.offload_optimizer),
        ("policy.generation.colocated.offload_parameters=true", settings.offload_parameters),
    ]
    missing = [override for override, is_set in asked if not is_set]
    return tuple(tuple(missing[: count + 1]) for count in range(len(missing)))


def _set(key: str, values: Sequence[int | str]) -> Family:
    return tuple((f"{key}={value}",) for value in values)


def _halved(value: int, least: int) -> list[int]:
    found = []
    while value // 2 >= least:
        value //= 2
        found.append(value)
    return found


def _doubled(value: int, most: int) -> list[int]:
    found = []
    while value * 2 <= most:
        value *= 2
        found.append(value)
    return found
