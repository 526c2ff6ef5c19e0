"""Conflicts of backends, parallel sizes, GPUs and micro-batches."""

from collections.abc import Iterator

from grpo.config.layout import layout, model_parallel_size, sequence_divisor
from grpo.config.rules.conflict import Conflict, Rule
from grpo.config.schema import Config

_DTENSOR, _MEGATRON = "policy.dtensor_cfg", "policy.megatron_cfg"
_COLOCATED = "policy.generation.colocated"
_NODES, _GPUS = "cluster.num_nodes", "cluster.gpus_per_node"
_ENGINE_TP = "policy.generation.vllm_cfg.tensor_parallel_size"
_CPU_ENGINES = "cluster.cpu_engine_ranks"


def one_backend(config: Config) -> Iterator[Conflict]:
    both = config.policy.dtensor_cfg.enabled, config.policy.megatron_cfg.enabled
    if both[0] == both[1]:
        yield Conflict((f"{_DTENSOR}.enabled", f"{_MEGATRON}.enabled"), "exactly one of the two backends trains")


def cpu_run(config: Config) -> Iterator[Conflict]:
    if config.cluster.gpus_per_node > 0:
        if config.cluster.cpu_threads is not None:
            yield Conflict(("cluster.cpu_threads", _GPUS), "threads are set for CPU runs only; null")
        if config.cluster.cpu_ranks > 1:
            yield Conflict(("cluster.cpu_ranks", _GPUS), "a run on GPUs has one rank a GPU; 1")
        if config.cluster.cpu_engine_ranks is not None:
            yield Conflict((_CPU_ENGINES, _GPUS), "a run on GPUs has one engine rank on each that generates; null")
        return
    if config.cluster.cpu_ranks % config.cluster.num_nodes:
        yield Conflict((_NODES, "cluster.cpu_ranks"), "every node of a CPU run has as many ranks; a divisor of them")
    if config.policy.dtensor_cfg.enabled and config.policy.dtensor_cfg.cpu_offload:
        yield Conflict((f"{_DTENSOR}.cpu_offload", _GPUS), "a CPU run has nothing to offload; set false")


def launcher(config: Config) -> Iterator[Conflict]:
    if config.cluster.launcher != "in_process":
        return
    if config.cluster.cpu_ranks > 1:
        yield Conflict(("cluster.cpu_ranks", "cluster.launcher"), "several ranks need workers: launcher=ray, or 1")
    if config.cluster.gpus_per_node == 0 and layout(config).generation_gpus > 1:
        yield Conflict(
            (_CPU_ENGINES, _ENGINE_TP, "cluster.launcher"),
            "engine ranks need processes: launcher=ray, or one engine rank",
        )
    if config.cluster.num_nodes * config.cluster.gpus_per_node > 1:
        yield Conflict((_NODES, _GPUS, "cluster.launcher"), "several GPUs need workers: launcher=ray, or one GPU")
    if config.cluster.gpus_per_node == 0 and not config.policy.generation.colocated.enabled:
        yield Conflict(
            (f"{_COLOCATED}.enabled", "cluster.launcher"), "a separate engine needs a process: launcher=ray, or true"
        )
    if config.cluster.ray_address is not None:
        yield Conflict(("cluster.ray_address", "cluster.launcher"), "only launcher=ray uses it; null, or launcher=ray")


def resources(config: Config) -> Iterator[Conflict]:
    colocated, cluster = config.policy.generation.colocated, config.cluster
    nodes, gpus = colocated.resources.num_nodes, colocated.resources.gpus_per_node
    nodes_key, gpus_key = f"{_COLOCATED}.resources.num_nodes", f"{_COLOCATED}.resources.gpus_per_node"
    if colocated.enabled:
        for key, value in ((nodes_key, nodes), (gpus_key, gpus)):
            if value is not None:
                yield Conflict(
                    (f"{_COLOCATED}.enabled", key), "a colocated engine shares every GPU; null, or set enabled to false"
                )
    elif cluster.gpus_per_node == 0:
        for key, value in ((nodes_key, nodes), (gpus_key, gpus)):
            if value is not None:
                yield Conflict(
                    (key, _GPUS), f"a run on the CPU has no GPUs to share out; null ({_CPU_ENGINES} sets ranks)"
                )
    elif cluster.num_nodes == 1:
        if gpus is None or nodes != 1 or gpus >= cluster.gpus_per_node:
            yield Conflict(
                (f"{_COLOCATED}.enabled", gpus_key, nodes_key, _NODES, _GPUS),
                f"the engine takes some GPUs of the node: gpus_per_node 1 to {cluster.gpus_per_node - 1}, "
                "num_nodes 1 or null",
            )
    elif nodes is None or nodes >= cluster.num_nodes or gpus != cluster.gpus_per_node:
        yield Conflict(
            (f"{_COLOCATED}.enabled", nodes_key, gpus_key, _NODES, _GPUS),
            f"the engine takes whole nodes: num_nodes 1 to {cluster.num_nodes - 1}, "
            f"gpus_per_node {cluster.gpus_per_node} or null",
        )


def training_layout(config: Config) -> Iterator[Conflict]:
    if any(resources(config)) or any(one_backend(config)):
        return
    ranks, copies = layout(config).training_gpus, model_parallel_size(config)
    on_gpus = config.cluster.gpus_per_node > 0
    keys = (*_parallel_keys(config), *((_NODES, _GPUS) if on_gpus else (_GPUS, "cluster.cpu_ranks")))
    if ranks % copies:
        unit = "GPUs" if on_gpus else "ranks"
        yield Conflict(keys, f"one copy of the model takes {copies} {unit}, which do not divide the {ranks} that train")
    elif config.policy.train_global_batch_size % (ranks // copies):
        yield Conflict(
            ("policy.train_global_batch_size", *keys),
            f"{ranks // copies} copies of the model share a batch: it must be a multiple",
        )


def _parallel_keys(config: Config) -> tuple[str, ...]:
    if config.policy.megatron_cfg.enabled:
        names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        return tuple(f"{_MEGATRON}.{name}" for name in names)
    return f"{_DTENSOR}.tensor_parallel_size", f"{_DTENSOR}.context_parallel_size"


def engine_layout(config: Config) -> Iterator[Conflict]:
    if config.policy.generation.backend != "vllm" or any(resources(config)):
        return
    devices, size = layout(config).generation_gpus, config.policy.generation.vllm_cfg.tensor_parallel_size
    if config.cluster.gpus_per_node == 0:
        if devices % size:
            yield Conflict((_ENGINE_TP, _CPU_ENGINES), f"it does not divide the {devices} engine ranks; a divisor")
        return
    colocated = config.policy.generation.colocated
    where = (_NODES, _GPUS)
    if not colocated.enabled:
        where = (f"{_COLOCATED}.resources.num_nodes", f"{_COLOCATED}.resources.gpus_per_node")
    if devices % size:
        yield Conflict((_ENGINE_TP, *where), f"it does not divide the {devices} GPUs that generate; a divisor")
        return
    of_node = config.cluster.gpus_per_node if colocated.enabled else colocated.resources.gpus_per_node or 1
    if of_node % size and size % of_node:
        yield Conflict(
            (_ENGINE_TP, *where),
            f"an engine would lie on parts of nodes with {of_node} GPUs that generate each; a divisor, or a multiple",
        )


def sequence_parallel(config: Config) -> Iterator[Conflict]:
    dtensor, megatron = config.policy.dtensor_cfg, config.policy.megatron_cfg
    for enabled, wanted, size, section, name in (
        (dtensor.enabled, dtensor.sequence_parallel, dtensor.tensor_parallel_size, _DTENSOR, "tensor_parallel_size"),
        (
            megatron.enabled,
            megatron.sequence_parallel,
            megatron.tensor_model_parallel_size,
            _MEGATRON,
            "tensor_model_parallel_size",
        ),
    ):
        if enabled and wanted and size == 1:
            yield Conflict(
                (f"{section}.sequence_parallel", f"{section}.{name}"),
                "sequences are shared over the tensor parallel ranks: raise the size above 1, or set false",
            )


def megatron_overlap(config: Config) -> Iterator[Conflict]:
    megatron = config.policy.megatron_cfg
    parallel, section = megatron.distributed_data_parallel_config, f"{_MEGATRON}.distributed_data_parallel_config"
    if not megatron.enabled or not parallel.overlap_param_gather:
        return
    for name, value in (
        ("use_distributed_optimizer", parallel.use_distributed_optimizer),
        ("overlap_grad_reduce", parallel.overlap_grad_reduce),
    ):
        if not value:
            yield Conflict(
                (f"{section}.overlap_param_gather", f"{section}.{name}"),
                "the distributed optimizer's shares are gathered bucket by bucket: set both true, or the first false",
            )


def sequence_multiple(config: Config) -> Iterator[Conflict]:
    given, needed = config.policy.make_sequence_length_divisible_by, sequence_divisor(config, needed=True)
    if given is not None and given % needed:
        yield Conflict(
            ("policy.make_sequence_length_divisible_by", *_parallel_keys(config)),
            f"the layout needs a multiple of {needed}, or null",
        )


def one_batching(config: Config) -> Iterator[Conflict]:
    if config.policy.dynamic_batching.enabled and config.policy.sequence_packing.enabled:
        yield Conflict(
            ("policy.dynamic_batching.enabled", "policy.sequence_packing.enabled"),
            "at most one of the two forms micro-batches",
        )


def micro_batch_tokens(config: Config) -> Iterator[Conflict]:
    total = config.policy.max_total_sequence_length
    for name in ("dynamic_batching", "sequence_packing"):
        section = getattr(config.policy, name)
        for key in ("train_mb_tokens", "logprob_mb_tokens"):
            held = getattr(section, key)
            if section.enabled and held is not None and held < total:
                yield Conflict(
                    (f"policy.{name}.{key}", "policy.max_total_sequence_length"),
                    f"one full sequence would not fit; at least {total}, or null",
                )


RULES: tuple[Rule, ...] = (
    one_backend, cpu_run, launcher, resources, training_layout, engine_layout, sequence_parallel, megatron_overlap,
    sequence_multiple, one_batching, micro_batch_tokens,
)  # fmt: skip
