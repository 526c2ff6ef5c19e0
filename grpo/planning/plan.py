"""A plan: what a configuration takes of memory and time before it is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo.config.schema import Config
from grpo.data.lengths import EXPONENTIAL
from grpo.errors import ConfigError
from grpo.models.flops import Flops, forward_flops, recompute_flops, training_flops
from grpo.planning.collectives import (
    Collective,
    Group,
    backward_collectives,
    forward_collectives,
    refit_collectives,
    update_collectives,
)
from grpo.planning.engine import EngineMemory, Generation, engine_memory, generation, kv_bytes_per_token
from grpo.planning.memory import PhaseMemory, phase_memory, stage_activations
from grpo.planning.parallel import check_divides, training_parallel
from grpo.planning.parameters import Model
from grpo.planning.partition import Partition
from grpo.planning.resident import Resident
from grpo.planning.setting import Setting
from grpo.planning.timing import (
    PhaseTime,
    generation_time,
    logprobs_time,
    other_time,
    refit_time,
    training_time,
)
from grpo.planning.workload import DEFAULT_PROMPT_TOKENS, step_lengths, step_workload
from grpo.trainer.supported import refusals


@dataclass(frozen=True)
class Assumptions:
    """What a configuration does not say."""

    prompt_tokens: int = DEFAULT_PROMPT_TOKENS
    completion_tokens: float | None = None  # None: a quarter of the most that may be generated
    length_shape: float = EXPONENTIAL
    resident: Resident = Resident.CONFIGURED


@dataclass(frozen=True)
class StepFlops:
    """Of a step over all GPUs, on the tokens as they are, without padding."""

    training: Flops
    recompute: Flops  # not in `training`
    logprobs: Flops


@dataclass(frozen=True)
class ActivationBytes:
    """Of the first pipeline stage in training, which has most micro-batches in flight."""

    without_recompute: float
    with_recompute: float


@dataclass(frozen=True)
class Plan:
    """Memory of the fullest GPU, time of the slowest rank."""

    setting: Setting
    assumptions: Assumptions
    engine: EngineMemory
    generation: Generation
    memory: tuple[PhaseMemory, ...]
    activations: ActivationBytes
    flops: StepFlops
    collectives: tuple[Collective, ...]
    times: tuple[PhaseTime, ...]
    shortages: tuple[str, ...]  # why it cannot run; empty: it fits

    @property
    def fits(self) -> bool:
        return not self.shortages

    @property
    def gpus(self) -> int:
        """Of trainer and engine."""
        cluster = self.setting.config.cluster
        return cluster.num_nodes * cluster.gpus_per_node

    @property
    def seconds(self) -> float:
        """Of a step."""
        return sum(each.seconds for each in self.times)

    @property
    def training_mfu(self) -> float:
        """Of policy training: model FLOPs over the datasheet's peak."""
        (training,) = [each.seconds for each in self.times if each.phase == "policy_training"]
        peak = self.setting.parallel.ranks * self.setting.partition.peak_flops.value
        return self.flops.training.total / (training * peak)

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Prompt and completion tokens over the whole step."""
        return self.setting.workload.lengths.tokens / self.seconds / self.gpus


def make_plan(model: Model, config: Config, partition: Partition, assumptions: Assumptions) -> Plan:
    """Plan a resolved configuration.

    Raises:
        ConfigError: something that no plan covers or that cannot be trained, or sizes that do not divide.
    """
    policy = config.policy
    for refusal in refusals(config):
        raise ConfigError(refusal)
    if policy.generation.backend != "vllm":
        raise ConfigError("policy.generation.backend = hf: plans cover vllm; policy.generation.backend=vllm")
    parallel = training_parallel(config)
    check_divides(model.dimensions, parallel, policy.generation.vllm_cfg.tensor_parallel_size)
    lengths = step_lengths(
        config, prompt_tokens=assumptions.prompt_tokens, completion_tokens=assumptions.completion_tokens,
        shape=assumptions.length_shape,
    )  # fmt: skip
    workload = step_workload(config, lengths, parallel.data)
    setting = Setting(model, config, parallel, workload, partition, assumptions.resident)
    engine = engine_memory(setting)
    sampled = generation(setting, engine)
    memory = tuple(phase_memory(setting, engine))
    return Plan(
        setting=setting,
        assumptions=assumptions,
        engine=engine,
        generation=sampled,
        memory=memory,
        activations=_activations(setting),
        flops=_flops(setting),
        collectives=_collectives(setting),
        times=_times(setting, sampled),
        shortages=(*_phase_shortages(memory, partition), *_cache_shortages(engine, setting)),
    )


def _activations(setting: Setting) -> ActivationBytes:
    def bytes_with(*, recompute: bool) -> float:
        found = stage_activations(replace(setting, parallel=replace(setting.parallel, recompute=recompute)), 0)
        return found.kept + found.transient

    return ActivationBytes(bytes_with(recompute=False), bytes_with(recompute=True))


def _flops(setting: Setting) -> StepFlops:
    work, dimensions = setting.workload, setting.model.dimensions
    sequences = [work.lengths.prompt + each for each in work.lengths.completions]
    predicted = sum(work.lengths.completions)
    return StepFlops(
        training=training_flops(dimensions, sequences, predicted),
        recompute=recompute_flops(dimensions, sequences) if setting.parallel.recompute else Flops(),
        logprobs=forward_flops(dimensions, sequences, predicted).scaled(work.scoring_passes + work.reference_passes),
    )


def _collectives(setting: Setting) -> tuple[Collective, ...]:
    work = setting.workload
    found = forward_collectives(setting, work.training, "policy_training")
    found += backward_collectives(setting) + update_collectives(setting)
    for each in forward_collectives(setting, work.scoring, "logprobs"):
        passes = work.scoring_passes + work.reference_passes
        found.append(replace(each, bytes=passes * each.bytes, seconds=passes * each.seconds))
    return (*found, *refit_collectives(setting))


def _times(setting: Setting, sampled: Generation) -> tuple[PhaseTime, ...]:
    link = Group(setting.engine_tensor, 1, setting.parallel.gpus_per_node).link
    return (
        refit_time(setting),
        generation_time(setting, sampled, link),
        logprobs_time(setting),
        training_time(setting),
        other_time(setting),
    )


def _phase_shortages(memory: Sequence[PhaseMemory], partition: Partition) -> list[str]:
    limit = partition.memory_bytes.value
    return [
        f"{each.phase} needs {_gib(each.total)} of the {_gib(limit)} of a GPU" for each in memory if each.total > limit
    ]


def _cache_shortages(engine: EngineMemory, setting: Setting) -> list[str]:
    options = setting.config.policy.generation.vllm_cfg
    longest = options.max_model_len or setting.config.policy.max_total_sequence_length
    needed = longest * kv_bytes_per_token(setting)
    if engine.kv_cache >= needed:
        return []
    left = _gib(engine.kv_cache) if engine.kv_cache > 0 else "nothing"
    share = f"gpu_memory_utilization = {options.gpu_memory_utilization:g} leaves {left} for the engine's KV cache"
    return [f"{share}; one sequence of {longest} tokens needs {_gib(needed)}"]


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
