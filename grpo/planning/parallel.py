"""How a configuration divides the model over ranks, and which links the groups of ranks use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grpo.config.layout import layout
from grpo.config.schema import Config
from grpo.errors import ConfigError
from grpo.models.dimensions import Dimensions
from grpo.planning.partition import Partition

Backend = Literal["dtensor", "megatron"]


@dataclass(frozen=True)
class Parallel:
    """Of the ranks that train. Neighbouring ranks are tensor parallel, then data parallel, then pipeline parallel."""

    backend: Backend
    tensor: int
    pipeline: int
    data: int
    gpus_per_node: int
    sequence_parallel: bool = False
    recompute: bool = False
    cpu_offload: bool = False
    distributed_optimizer: bool = True  # Megatron: masters and moments are divided over the copies of the model
    overlap_grad_reduce: bool = False  # Megatron: gradients are summed beside the last backward pass of an update
    overlap_param_gather: bool = False  # Megatron: parameters are gathered beside the first forward pass after it

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def sequence_share(self) -> int:
        """Ranks over which norms and residuals divide a sequence."""
        return self.tensor if self.sequence_parallel else 1


def training_parallel(config: Config) -> Parallel:
    """The training ranks of a resolved configuration.

    Raises:
        ConfigError: it has no GPUs, or asks for context parallelism, which no plan covers.
    """
    policy = config.policy
    if config.cluster.gpus_per_node == 0:
        raise ConfigError(
            "cluster.gpus_per_node = 0: a plan is made for GPUs; set it to those of a node, such as 1 or 8"
        )
    found = layout(config)
    if policy.megatron_cfg.enabled:
        cfg = policy.megatron_cfg
        _without_context_parallel("policy.megatron_cfg", cfg.context_parallel_size)
        return Parallel(
            "megatron", cfg.tensor_model_parallel_size, cfg.pipeline_model_parallel_size, found.data_parallel_size,
            config.cluster.gpus_per_node, cfg.sequence_parallel, cfg.activation_checkpointing,
            distributed_optimizer=cfg.distributed_data_parallel_config.use_distributed_optimizer,
            overlap_grad_reduce=cfg.distributed_data_parallel_config.overlap_grad_reduce,
            overlap_param_gather=cfg.distributed_data_parallel_config.overlap_param_gather,
        )  # fmt: skip
    dtensor = policy.dtensor_cfg
    _without_context_parallel("policy.dtensor_cfg", dtensor.context_parallel_size)
    return Parallel(
        "dtensor", dtensor.tensor_parallel_size, 1, found.data_parallel_size, config.cluster.gpus_per_node,
        dtensor.sequence_parallel, dtensor.activation_checkpointing, dtensor.cpu_offload,
    )  # fmt: skip


def _without_context_parallel(section: str, size: int) -> None:
    if size > 1:
        raise ConfigError(f"{section}.context_parallel_size = {size}: plans do not cover context parallelism; 1")


def check_divides(dimensions: Dimensions, parallel: Parallel, engine_tensor: int) -> None:
    """Raise ConfigError where heads, layers or widths do not divide over the ranks."""
    section = "policy.megatron_cfg" if parallel.backend == "megatron" else "policy.dtensor_cfg"
    key = "tensor_model_parallel_size" if parallel.backend == "megatron" else "tensor_parallel_size"
    sizes = {
        "attention heads": dimensions.heads,
        "key and value heads": dimensions.kv_heads,
        "intermediate size": dimensions.intermediate,
    }
    for what, size in sizes.items():
        if size % parallel.tensor:
            raise ConfigError(f"{section}.{key} = {parallel.tensor}: it must divide the model's {what}, {size}")
    if dimensions.layers % parallel.pipeline:
        raise ConfigError(
            f"{section}.pipeline_model_parallel_size = {parallel.pipeline}: it must divide the model's layers, "
            f"{dimensions.layers}"
        )
    if dimensions.heads % engine_tensor or (
        dimensions.kv_heads % engine_tensor and engine_tensor % dimensions.kv_heads
    ):
        raise ConfigError(
            f"policy.generation.vllm_cfg.tensor_parallel_size = {engine_tensor}: it must divide the model's attention "
            f"heads, {dimensions.heads}, and fit its {dimensions.kv_heads} key and value heads"
        )


def bus_bandwidth(partition: Partition, *, size: int, stride: int, gpus_per_node: int) -> float:
    """Bytes a second and rank of a ring collective over `size` ranks that are `stride` ranks apart.

    Inside a node it is NVLink's. Across nodes each node has a port a GPU, shared by the rings that cross it at once: a
    ring with k members in a node has k of them.
    """
    if size * stride <= gpus_per_node:
        return partition.nvlink.value
    members = max(1, gpus_per_node // stride)
    return min(partition.nvlink.value, members * partition.network.value)
