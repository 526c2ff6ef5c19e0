"""Bytes that one rank sends to others in a step, by kind, and the seconds that the link needs for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from grpo.planning.parallel import Parallel, bus_bandwidth
from grpo.planning.parameters import outer_elements, stage_elements, tensor_elements
from grpo.planning.partition import Partition
from grpo.planning.setting import FLOAT32, Setting
from grpo.planning.workload import RankWork

FSDP_GATHER, FSDP_REDUCE = "fsdp all-gather", "fsdp reduce-scatter"  # these run beside the computation
GRADIENT_SCATTER, PARAMETER_GATHER, GRADIENT_SUM = (
    "gradient reduce-scatter", "parameter all-gather", "gradient all-reduce",
)  # fmt: skip
BACKWARD = ", backward"
Link = Literal["nvlink", "network"]


@dataclass(frozen=True)
class Collective:
    """Of one rank in one step. Bytes are what passes its link: (n - 1) / n of a gathered tensor, twice for a sum."""

    phase: str
    kind: str
    bytes: float
    link: Link
    seconds: float


@dataclass(frozen=True)
class Group:
    """Ranks that talk to each other: `size` of them, `stride` ranks apart."""

    size: int
    stride: int
    gpus_per_node: int

    @property
    def link(self) -> Link:
        return "nvlink" if self.size * self.stride <= self.gpus_per_node else "network"

    @property
    def others(self) -> float:
        """Share of a gathered tensor that comes from the other ranks."""
        return (self.size - 1) / self.size

    def collective(self, partition: Partition, phase: str, kind: str, size: float) -> Collective:
        """`size` bytes over this group's link."""
        rate = bus_bandwidth(partition, size=self.size, stride=self.stride, gpus_per_node=self.gpus_per_node)
        return Collective(phase, kind, size, self.link, size / rate)


def groups(parallel: Parallel) -> tuple[Group, Group, Group]:
    """Tensor, data and pipeline parallel."""
    gpus = parallel.gpus_per_node
    return (
        Group(parallel.tensor, 1, gpus),
        Group(parallel.data, parallel.tensor, gpus),
        Group(parallel.pipeline, parallel.tensor * parallel.data, gpus),
    )


def forward_collectives(setting: Setting, work: RankWork, phase: str) -> list[Collective]:
    """Of one forward pass over `work`: FSDP's gathers, two sums a layer over tensor parallel ranks, pipeline sends.

    With sequence parallelism a sum is a reduce-scatter and a gather, which move as many bytes.
    """
    model, parallel, partition = setting.model, setting.parallel, setting.partition
    tensor, data, pipeline = groups(parallel)
    states = work.computed_tokens * model.dimensions.hidden * setting.compute_bytes
    found = []
    if parallel.backend == "dtensor" and parallel.data > 1:
        whole = setting.compute_bytes * tensor_elements(model, parallel.tensor)
        found.append(data.collective(partition, phase, FSDP_GATHER, data.others * whole * work.micro_batches))
    if parallel.tensor > 1:
        sums = 2 * model.dimensions.layers / parallel.pipeline * 2 * tensor.others * states
        found.append(tensor.collective(partition, phase, "tensor parallel sums", sums))
    if parallel.pipeline > 1:
        found.append(pipeline.collective(partition, phase, "pipeline sends", states / parallel.sequence_share))
    return found


def backward_collectives(setting: Setting) -> list[Collective]:
    """Of all backward passes of a step. Layers are gathered again; sharded gradients are summed every micro-batch."""
    model, parallel, partition = setting.model, setting.parallel, setting.partition
    phase, work = "policy_training", setting.workload.training
    tensor, data, pipeline = groups(parallel)
    states = work.computed_tokens * model.dimensions.hidden * setting.compute_bytes
    found = []
    if parallel.backend == "dtensor" and parallel.data > 1:
        whole = tensor_elements(model, parallel.tensor)
        inner = whole - outer_elements(model, parallel.tensor)
        gathered = data.others * setting.compute_bytes * inner * work.micro_batches
        reduced = data.others * FLOAT32 * whole * work.micro_batches
        found.append(data.collective(partition, phase, FSDP_GATHER + BACKWARD, gathered))
        found.append(data.collective(partition, phase, FSDP_REDUCE, reduced))
    if parallel.tensor > 1:
        passes = 2 if parallel.recompute else 1
        sums = passes * 2 * model.dimensions.layers / parallel.pipeline * 2 * tensor.others * states
        found.append(tensor.collective(partition, phase, "tensor parallel sums" + BACKWARD, sums))
    if parallel.pipeline > 1:
        sent = states / parallel.sequence_share
        found.append(pipeline.collective(partition, phase, "pipeline sends" + BACKWARD, sent))
    return found


def update_collectives(setting: Setting) -> list[Collective]:
    """Megatron's, once an update: its distributed optimizer scatters gradients and gathers parameters.

    Without it gradients are summed over the copies of the model.
    """
    parallel = setting.parallel
    if parallel.backend != "megatron" or parallel.data == 1:
        return []
    data = groups(parallel)[1]
    moved = setting.workload.updates * data.others * _largest_stage(setting)
    if parallel.distributed_optimizer:
        kinds = [(GRADIENT_SCATTER, FLOAT32), (PARAMETER_GATHER, setting.compute_bytes)]
    else:
        kinds = [(GRADIENT_SUM, 2 * FLOAT32)]
    return [data.collective(setting.partition, "policy_training", kind, each * moved) for kind, each in kinds]


def refit_collectives(setting: Setting) -> list[Collective]:
    """Every rank gathers the whole model in the compute dtype; separate engines are sent it besides, over NCCL."""
    parallel, partition, phase = setting.parallel, setting.partition, "refit"
    size = setting.compute_bytes * setting.model.parameters
    tensor, data, pipeline = groups(parallel)
    found = []
    if parallel.backend == "dtensor" and parallel.data > 1:
        gathered = data.others * size / parallel.tensor
        found.append(data.collective(partition, phase, "gather over data parallel ranks", gathered))
    if parallel.tensor > 1:
        gathered = tensor.others * size / parallel.pipeline
        found.append(tensor.collective(partition, phase, "gather over tensor parallel ranks", gathered))
    if parallel.pipeline > 1:
        found.append(pipeline.collective(partition, phase, "gather over pipeline stages", pipeline.others * size))
    if not setting.colocated:
        several = setting.config.cluster.num_nodes > 1
        apart = Group(2, parallel.gpus_per_node if several else 1, parallel.gpus_per_node)
        sent = apart.collective(partition, phase, "broadcast to engines", size)
        within = min(sent.bytes / sent.seconds, partition.refit_broadcast.value)
        found.append(replace(sent, seconds=size / within))
    return found


def _largest_stage(setting: Setting) -> int:
    model, parallel = setting.model, setting.parallel
    return max(stage_elements(model, parallel, stage) for stage in {0, setting.last_stage})
