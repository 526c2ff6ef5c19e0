"""Seconds of each phase of a step, by what they are spent on.

A phase's seconds are the sum of its parts. What binds it is the resource that most of them are spent on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grpo.models.flops import Flops
from grpo.placement.resources import Residence, Resource
from grpo.planning.collectives import (
    BACKWARD,
    FSDP_GATHER,
    FSDP_REDUCE,
    PARAMETER_GATHER,
    Collective,
    backward_collectives,
    forward_collectives,
    refit_collectives,
    update_collectives,
)
from grpo.planning.engine import Generation
from grpo.planning.memory import chunk_tokens, policy_state
from grpo.planning.parameters import sharded_elements, tensor_elements
from grpo.planning.resident import moves_of_a_step
from grpo.planning.setting import FLOAT32, Setting
from grpo.planning.traffic import OPTIMIZER_BYTES, layer_traffic, logits_traffic
from grpo.planning.workload import RankWork
from grpo.telemetry.timers import Phase

Bound = Literal["compute", "memory bandwidth", "nvlink", "network", "host copies", "engine overhead", "bubble", "cpu"]


@dataclass(frozen=True)
class Part:
    """Seconds of the critical path."""

    name: str
    seconds: float
    bound: Bound


@dataclass(frozen=True)
class PhaseTime:
    """A phase and its parts."""

    phase: str
    parts: tuple[Part, ...]

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def binds(self) -> Bound:
        """The resource that most of the phase is spent on."""
        spent: dict[Bound, float] = {}
        for part in self.parts:
            spent[part.bound] = spent.get(part.bound, 0.0) + part.seconds
        return max(spent, key=lambda bound: spent[bound])


@dataclass(frozen=True)
class Pass:
    """Seconds of one rank for one direction of a pass over all its micro-batches."""

    products: float
    attention: float
    traffic: float


def rank_flops(setting: Setting, work: RankWork) -> Flops:
    """Of a forward pass over `work` on one rank of the last stage, padding included."""
    d, parallel = setting.model.dimensions, setting.parallel
    layers = d.layers / parallel.pipeline / parallel.tensor
    return Flops(
        layers=2.0 * work.computed_tokens * layers * d.layer_weights,
        attention=2.0 * work.squares * d.query_width * layers,
        head=2.0 * work.predicted_tokens * d.head_weights / parallel.tensor,
    )


def _forward(setting: Setting, work: RankWork) -> Pass:
    flops, layers, (logits, _) = _work(setting, work)
    return _pass(setting, flops.layers + flops.head, flops.attention, layers + logits)


def _backward(setting: Setting, work: RankWork) -> Pass:
    flops, layers, (_, logits) = _work(setting, work)
    several_chunks = work.predicted_tokens > work.micro_batches * chunk_tokens(setting)
    operations = 2 * (flops.layers + flops.head) + (flops.head if several_chunks else 0.0)
    attention, moved = 2 * flops.attention, 2 * layers + logits
    if setting.parallel.recompute:
        operations += flops.layers
        attention += flops.attention
        moved += layers
    return _pass(setting, operations, attention, moved)


def _pass(setting: Setting, products: float, attention: float, moved: float) -> Pass:
    """From FLOPs of products and of attention, and other kernels' bytes."""
    rates = setting.partition
    return Pass(products / rates.matmul_flops.value, attention / rates.attention_flops.value, moved / _memory(setting))


def _work(setting: Setting, work: RankWork) -> tuple[Flops, float, tuple[float, float]]:
    """FLOPs forward; other kernels' bytes: of the layers forward, of the logits forward and backward."""
    d, parallel = setting.model.dimensions, setting.parallel
    layers = layer_traffic(d, parallel, setting.compute_bytes) * work.computed_tokens * d.layers / parallel.pipeline
    logits = logits_traffic(
        d, parallel, setting.compute_bytes, tokens=work.predicted_tokens, batches=work.micro_batches,
        chunk=chunk_tokens(setting),
    )  # fmt: skip
    return rank_flops(setting, work), layers, logits


def _memory(setting: Setting) -> float:
    return setting.partition.memory_bandwidth.value


def _direction(compute: Pass, collectives: Sequence[Collective], host_s: float, label: str) -> list[Part]:
    """Parts of one direction: FSDP's collectives and offloading's copies run beside the computation, others do not."""
    parts = [
        Part(f"{label}: matrix products", compute.products, "compute"),
        Part(f"{label}: attention", compute.attention, "compute"),
        Part(f"{label}: other kernels", compute.traffic, "memory bandwidth"),
    ]
    parts += [
        Part(f"{label}: {each.kind.removesuffix(BACKWARD)}", each.seconds, each.link) for each in _exposed(collectives)
    ]
    hidden = [each for each in collectives if each not in _exposed(collectives)]
    busy = sum(part.seconds for part in parts)
    gathering = sum(each.seconds for each in hidden)
    if gathering > max(busy, host_s):
        parts.append(Part(f"{label}: fsdp beyond computation", gathering - busy, hidden[0].link))
    elif host_s > busy:
        parts.append(Part(f"{label}: host copies beyond computation", host_s - busy, "host copies"))
    return parts


def _exposed(collectives: Sequence[Collective]) -> list[Collective]:
    return [each for each in collectives if not each.kind.startswith((FSDP_GATHER, FSDP_REDUCE))]


def _bubble(setting: Setting, parts: Sequence[Part], micro_batches: int, rounds: int) -> Part:
    """Pipeline stages that wait: stages - 1 micro-batches in each of `rounds`."""
    each = sum(part.seconds for part in parts) / max(micro_batches, 1)
    return Part("pipeline bubble", rounds * (setting.parallel.pipeline - 1) * each, "bubble")


def training_time(setting: Setting) -> PhaseTime:
    """All updates of a step, and bringing back what is away."""
    parallel, workload, work = setting.parallel, setting.workload, setting.workload.training
    ahead, back = forward_collectives(setting, work, "policy_training"), backward_collectives(setting)
    shard = _local_elements(setting)
    copied = _shard_copies_s(setting, work)
    parts = _direction(_forward(setting, work), ahead, copied, "forward")
    parts += _direction(_backward(setting, work), back, 2 * copied, "backward")
    if parallel.pipeline > 1:
        parts.append(_bubble(setting, parts, work.micro_batches, workload.updates))
    parts += _update_parts(setting, parts)
    parts.append(_optimizer(setting, shard))
    return PhaseTime("policy_training", (*parts, *_moves(setting, "policy_training")))


def _update_parts(setting: Setting, passes: Sequence[Part]) -> list[Part]:
    """Megatron's collectives of the updates; one that overlaps a micro-batch's pass counts for what exceeds it."""
    parallel, workload = setting.parallel, setting.workload
    an_update = workload.updates / max(workload.training.micro_batches, 1)
    parts = []
    for each in update_collectives(setting):
        gathers = each.kind == PARAMETER_GATHER
        overlaps = parallel.overlap_param_gather if gathers else parallel.overlap_grad_reduce
        label = "forward" if gathers else "backward"
        beside = sum(part.seconds for part in passes if part.name.startswith(label)) * an_update if overlaps else 0.0
        if each.seconds > beside:
            parts.append(Part(each.kind, each.seconds - beside, each.link))
    return parts


def _optimizer(setting: Setting, shard: float) -> Part:
    """The step on this rank's shard, on the CPU where the shard is there."""
    moved = setting.workload.updates * OPTIMIZER_BYTES * shard
    if setting.parallel.cpu_offload:
        rate = setting.partition.host_memory_bandwidth.value / setting.parallel.gpus_per_node
        return Part("optimizer step on the CPU", moved / rate, "cpu")
    return Part("optimizer step", moved / _memory(setting), "memory bandwidth")


def _local_elements(setting: Setting) -> float:
    """Elements whose optimizer state this rank has."""
    model, parallel = setting.model, setting.parallel
    if parallel.backend == "megatron":
        copies = parallel.data if parallel.distributed_optimizer else 1
        return tensor_elements(model, parallel.tensor) / parallel.pipeline / copies
    return sharded_elements(model, parallel.tensor, parallel.data)


def _shard_copies_s(setting: Setting, work: RankWork) -> float:
    """Seconds in which parameters that are kept on the host reach the GPU, or gradients the host, in every pass."""
    if not setting.parallel.cpu_offload:
        return 0.0
    return FLOAT32 * _local_elements(setting) * work.micro_batches / setting.partition.host_copy.value


_MOVED = {
    Resource.POLICY_PARAMETERS: "parameter",
    Resource.OPTIMIZER_STATE: "optimizer",
    Resource.REFERENCE_PARAMETERS: "reference",
    Resource.ENGINE_WEIGHTS: "engine weights",
}


def _moves(setting: Setting, phase: Phase) -> list[Part]:
    """Copies between GPU and host that placement makes for this phase, as often as once a step.

    What has no content (gradients, the KV cache) or is an unchanged copy (the reference) is freed without one.
    """
    state, weights = policy_state(setting, setting.last_stage), _engine_weights(setting)
    work = setting.workload
    parts = []
    for each in moves_of_a_step(setting.placement, scores=bool(work.scoring_passes + work.reference_passes)):
        sizes = {
            Resource.POLICY_PARAMETERS: state.parameters - state.masters,
            Resource.OPTIMIZER_STATE: state.optimizer + state.masters,
            Resource.REFERENCE_PARAMETERS: 0.0 if each.leaves else state.reference,
            Resource.ENGINE_WEIGHTS: weights if Residence.ABSENT not in (each.source, each.target) else 0.0,
        }
        if each.counts_in == phase and (size := sizes.get(each.resource, 0.0)):
            name = f"{_MOVED[each.resource]} {each.part}"
            parts.append(Part(name, size / setting.partition.host_copy.value, "host copies"))
    return parts


def _engine_weights(setting: Setting) -> float:
    """Bytes of one GPU's part of an engine."""
    return float(setting.compute_bytes * tensor_elements(setting.model, setting.engine_tensor))


def logprobs_time(setting: Setting) -> PhaseTime:
    """Forward passes by policy and reference, and bringing both back."""
    workload = setting.workload
    work, parts = workload.scoring, _moves(setting, "logprobs")
    passes = [("policy", workload.scoring_passes), ("reference", workload.reference_passes)]
    collectives, copied = forward_collectives(setting, work, "logprobs"), _shard_copies_s(setting, work)
    for name, count in passes:
        if not count:
            continue
        one = _direction(_forward(setting, work), collectives, copied, name)
        if setting.parallel.pipeline > 1:
            one.append(_bubble(setting, one, work.micro_batches, 1))
        parts += one
    return PhaseTime("logprobs", tuple(parts or [Part("no pass", 0.0, "compute")]))


def refit_time(setting: Setting) -> PhaseTime:
    """From the end of training to a ready engine."""
    partition, weights = setting.partition, _engine_weights(setting)
    parts = [Part(each.kind, each.seconds, each.link) for each in refit_collectives(setting)]
    if setting.colocated:
        seconds = partition.refit_start_s.value + weights / partition.refit_copy.value
        parts.append(Part("transfer into the engine", seconds, "memory bandwidth"))
    else:
        parts.append(Part("load into the engine", 2 * weights / _memory(setting), "memory bandwidth"))
    return PhaseTime("refit", (*parts, *_moves(setting, "refit")))


def generation_time(setting: Setting, found: Generation, engine_link: Literal["nvlink", "network"]) -> PhaseTime:
    """The slowest engine, and its falling asleep."""
    return PhaseTime(
        "generation",
        (
            Part("weights", found.weights_s, "memory bandwidth"),
            Part("kv cache", found.kv_cache_s, "memory bandwidth"),
            Part("scheduling and log-probs", found.overhead_s, "engine overhead"),
            Part("tensor parallel sums", found.collective_s, engine_link),
            Part("prefill", found.prefill_s, "compute"),
            *_moves(setting, "generation"),
        ),
    )


def other_time(setting: Setting) -> PhaseTime:
    """Verification of mathematics, shared by the verifiers' processes. The rest of a step is not predicted."""
    verifiers = [env for env in setting.config.env.values() if env.verifier == "math"]
    workers = sum(env.num_workers for env in verifiers)
    spent = setting.workload.samples * setting.partition.verification_s.value / workers if workers else 0.0
    return PhaseTime("other", (Part("verification", spent, "cpu"),))
