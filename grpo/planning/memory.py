"""Bytes on the fullest GPU in each phase, by what holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from grpo.placement.resources import Residence, Resource
from grpo.planning.activations import (
    Activations,
    head_gradient_bytes,
    logit_chunk_bytes,
    scoring_activations,
    training_activations,
)
from grpo.planning.engine import EngineMemory
from grpo.planning.parameters import (
    layer_elements,
    outer_elements,
    sharded_elements,
    stage_elements,
)
from grpo.planning.resident import residences
from grpo.planning.setting import FLOAT32, Setting
from grpo.telemetry.timers import Phase
from grpo.workers.policy.options import needs_reference
from grpo.workers.policy.token_logprobs import default_chunk_size

BUCKETS = 2  # of a refit: one is filled while the other is taken
MOMENTS = 2 * FLOAT32


@dataclass(frozen=True)
class PolicyState:
    """Bytes of one rank between micro-batches."""

    parameters: float
    masters: float  # of the parameters: float32 masters beside rounded ones, which go where the optimizer goes
    gradients: float
    optimizer: float
    reference: float  # 0 without a KL term
    gathered: float  # whole parameters that sharded ones are gathered into for a layer's work
    gathered_gradients: float  # whole gradients before they are reduced


@dataclass(frozen=True)
class PhaseMemory:
    """One GPU in one phase. `gpus` says which: in a separate placement trainer and engine have their own."""

    phase: str
    gpus: Literal["training", "generation", "all"]
    bytes: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.bytes.values())


def policy_state(setting: Setting, stage: int) -> PolicyState:
    """What the policy and its reference take on a rank of pipeline stage `stage`.

    DTensor: float32 masters, gradients and two moments, divided over all ranks of a copy and over its copies (FSDP2);
    one process alone has a rounded copy of the masters instead of gathering; with one copy of the model nothing that
    is gathered is given back within a pass. Megatron: parameters in the compute dtype and float32 gradients on every
    rank of a copy, masters and moments divided over the copies by its distributed optimizer, else on every rank.
    """
    model, parallel, c = setting.model, setting.parallel, setting.compute_bytes
    kept = needs_reference(setting.config)
    if parallel.backend == "megatron":
        held = stage_elements(model, parallel, stage)
        masters = FLOAT32 if c != FLOAT32 else 0
        optimizer = (masters + MOMENTS) * -(-held // (parallel.data if parallel.distributed_optimizer else 1))
        return PolicyState(c * held, 0, FLOAT32 * held, optimizer, c * held * kept, 0, 0)
    held = sharded_elements(model, parallel.tensor, parallel.data)
    masters, reference = FLOAT32 * held, c * held * kept
    if parallel.ranks == 1 and not parallel.cpu_offload:
        rounded = c * held if c != FLOAT32 else 0
        apart = masters if rounded else 0
        return PolicyState(masters + rounded, apart, masters, MOMENTS * held, reference, 0, 0)
    layer, outer = layer_elements(model, parallel.tensor), outer_elements(model, parallel.tensor)
    given_back = parallel.data > 1 or parallel.cpu_offload
    layers = 2 if given_back else model.dimensions.layers  # the next one is gathered while one computes
    gathered = c * (outer + layers * layer)
    gradients = c * outer + (c + FLOAT32) * layer
    if parallel.cpu_offload:
        return PolicyState(0, 0, 0, 0, 0, gathered, gradients)
    return PolicyState(masters, 0, masters, MOMENTS * held, reference, gathered, gradients)


def phase_memory(setting: Setting, engine: EngineMemory) -> list[PhaseMemory]:
    """Every phase's fullest GPU: what the placement has there, and what the phase's work takes besides."""
    stages = [_stage_phases(setting, engine, stage) for stage in range(setting.parallel.pipeline)]
    return [max(phases, key=lambda each: each.total) for phases in zip(*stages, strict=True)]


def _stage_phases(setting: Setting, engine: EngineMemory, stage: int) -> list[PhaseMemory]:
    state = policy_state(setting, stage)
    training, scoring = _training_bytes(setting, state, stage), _scoring_bytes(setting, state, stage)
    works: dict[Phase, dict[str, float]] = {
        "refit": {},
        "generation": {},
        "logprobs": {name: size for name, size in scoring.items() if name not in ("parameters", "reference")},
        "policy_training": training,
    }
    process, buckets = setting.partition.process_bytes.value, {"refit buckets": _bucket_bytes(setting)}
    if not setting.colocated:
        found = []
        for phase, work in works.items():
            generates = phase == "generation"
            held = _engine_bytes(setting, engine, phase) if generates else _policy_bytes(setting, state, phase)
            gpus: Literal["training", "generation"] = "generation" if generates else "training"
            found.append(PhaseMemory(phase, gpus, {"processes": process} | buckets | held | work))
        return found
    one_process = setting.parallel.ranks == 1 and setting.config.cluster.launcher != "ray"
    always = {"processes": process} if one_process else {"processes": 2 * process} | buckets
    return [
        PhaseMemory(
            phase,
            "all",
            always | _policy_bytes(setting, state, phase) | work | _engine_bytes(setting, engine, phase),
        )
        for phase, work in works.items()
    ]


def _policy_bytes(setting: Setting, state: PolicyState, phase: Phase) -> dict[str, float]:
    """What placement has on the GPU of the policy. Between updates Megatron's gradient buffers alone hold memory."""
    there = _on_gpu(setting, phase)
    found = {}
    rounded = (state.parameters - state.masters) * (Resource.POLICY_PARAMETERS in there)
    masters = state.masters * (Resource.OPTIMIZER_STATE in there)
    if rounded or masters:
        found["parameters"] = rounded + masters
    if Resource.GRADIENTS in there and setting.parallel.backend == "megatron":
        found["gradients"] = state.gradients
    if Resource.OPTIMIZER_STATE in there:
        found["optimizer"] = state.optimizer
    if Resource.REFERENCE_PARAMETERS in there and state.reference:
        found["reference"] = state.reference
    return found


def _engine_bytes(setting: Setting, engine: EngineMemory, phase: Phase) -> dict[str, float]:
    there = _on_gpu(setting, phase)
    found = {"engine weights": engine.weights} if Resource.ENGINE_WEIGHTS in there else {}
    if Resource.ENGINE_KV_CACHE in there:
        found |= {"engine workspace": engine.workspace, "kv cache": engine.kv_cache}
    return found


def _on_gpu(setting: Setting, phase: Phase) -> set[Resource]:
    return {each for each, place in residences(setting.placement, phase).items() if place == Residence.GPU}


def stage_activations(setting: Setting, stage: int) -> Activations:
    """Of the largest micro-batches that may occur, as many as are in flight on this stage (1F1B)."""
    parallel, workload, layers = setting.parallel, setting.workload, setting.model.dimensions.layers
    an_update = max(1, workload.training.micro_batches // workload.updates)
    return training_activations(
        setting.model.dimensions, parallel, workload.train_cap, layers=layers // parallel.pipeline,
        in_flight=min(parallel.pipeline - stage, an_update), compute_bytes=setting.compute_bytes,
        packed=setting.config.policy.sequence_packing.enabled,
    )  # fmt: skip


def _training_bytes(setting: Setting, state: PolicyState, stage: int) -> dict[str, float]:
    d, parallel = setting.model.dimensions, setting.parallel
    activations = stage_activations(setting, stage)
    logits = 0.0
    if stage == setting.last_stage:
        chunk = min(chunk_tokens(setting), setting.workload.train_cap)
        entropy = setting.config.loss_fn.entropy_coef != 0
        logits = logit_chunk_bytes(d, parallel, chunk, entropy=entropy) + head_gradient_bytes(d, parallel)
    return {
        "parameters": state.parameters,
        "gradients": state.gradients,
        "optimizer": state.optimizer,
        "gathered": state.gathered + state.gathered_gradients,
        "activations": activations.kept + activations.transient,
        "logits": logits,
    }


def _scoring_bytes(setting: Setting, state: PolicyState, stage: int) -> dict[str, float]:
    d, parallel, c = setting.model.dimensions, setting.parallel, setting.compute_bytes
    chunk = min(chunk_tokens(setting), setting.workload.score_cap)
    return {
        "parameters": state.parameters,
        "reference": state.reference,
        "gathered": state.gathered,
        "activations": scoring_activations(d, parallel, setting.workload.score_cap, c),
        "logits": logit_chunk_bytes(d, parallel, chunk, entropy=False) if stage == setting.last_stage else 0.0,
    }


def worker_memory(setting: Setting, stage: int = 0) -> dict[str, dict[str, float]]:
    """Of the policy worker alone on a rank of pipeline stage `stage`, all of it on the GPU: in each of its phases."""
    state = policy_state(setting, stage)
    idle = {"gradients": 0.0, "optimizer": state.optimizer}
    return {
        "logprobs": idle | _scoring_bytes(setting, state, stage),
        "policy_training": {"reference": state.reference} | _training_bytes(setting, state, stage),
    }


def _bucket_bytes(setting: Setting) -> float:
    """Of buckets that stay where they are: each holds the largest tensor too, of which one is gathered at a time."""
    d = setting.model.dimensions
    largest = setting.compute_bytes * max(d.head_weights, d.hidden * d.intermediate)
    return float(BUCKETS * max(setting.config.policy.generation.refit.bucket_bytes, largest))


def chunk_tokens(setting: Setting) -> int:
    """Tokens whose logits exist at once."""
    local = -(-setting.model.dimensions.vocab // setting.parallel.tensor)
    return setting.config.policy.logprob_chunk_size or default_chunk_size(local, torch.device("cuda"))
