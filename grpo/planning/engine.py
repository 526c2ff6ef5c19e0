"""The generation engine (vLLM): what it holds on a GPU, and a simulation of its token steps."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from grpo.config.layout import layout
from grpo.planning.parallel import bus_bandwidth
from grpo.planning.parameters import tensor_elements
from grpo.planning.setting import FLOAT32, Setting
from grpo.workers.generation.vllm_arguments import sequences_at_once

BATCHED_TOKENS = 16384  # vLLM 0.25-0.32, EngineArgs, for the LLM class on GPUs of 70 GiB and more (an A100 apart)


@dataclass(frozen=True)
class EngineMemory:
    """Bytes on one GPU of an engine, and how many tokens of context its cache holds."""

    weights: float
    workspace: float  # activations of the largest prefill, and float32 logits while sampling
    kv_cache: float  # negative: the rest does not fit the engine's share
    kv_tokens: int
    max_sequences: int


def engine_memory(setting: Setting) -> EngineMemory:
    """What `gpu_memory_utilization` of a GPU is divided into; the cache takes what is left."""
    d, options = setting.model.dimensions, setting.config.policy.generation.vllm_cfg
    tensor, c = setting.engine_tensor, setting.compute_bytes
    weights = c * tensor_elements(setting.model, tensor)
    sequences = sequences_at_once(setting.config)
    prefill = BATCHED_TOKENS * c * (3 * d.intermediate / tensor + 4 * d.hidden)
    workspace = prefill + 2 * FLOAT32 * sequences * d.vocab
    partition = setting.partition
    budget = options.gpu_memory_utilization * partition.memory_bytes.value
    cache = float(options.kv_cache_memory_bytes or budget - weights - workspace - partition.process_bytes.value)
    return EngineMemory(weights, workspace, cache, int(max(0.0, cache) // kv_bytes_per_token(setting)), sequences)


def kv_bytes_per_token(setting: Setting) -> int:
    """Keys and values of one token in all layers on one rank; fewer heads than ranks are repeated."""
    d = setting.model.dimensions
    return 2 * d.layers * max(1, d.kv_heads // setting.engine_tensor) * d.head_dim * setting.compute_bytes


@dataclass(frozen=True)
class Generation:
    """The slowest engine's phase. Seconds by what they are spent on."""

    engines: int
    sequences: int  # of one engine
    concurrent: int
    steps: int
    weights_s: float  # reading weights, or computing where that takes longer
    kv_cache_s: float
    overhead_s: float  # the engine's own work per step and per sequence
    collective_s: float
    prefill_s: float

    @property
    def seconds(self) -> float:
        return self.weights_s + self.kv_cache_s + self.overhead_s + self.collective_s + self.prefill_s


@dataclass(frozen=True)
class StepCosts:
    """Seconds of one token step: `fixed`, and for each running sequence and each token of their contexts."""

    weights: float
    compute_per_sequence: float
    kv_per_token: float
    overhead: float
    overhead_per_sequence: float
    collective_per_sequence: float


def step_costs(setting: Setting) -> StepCosts:
    """From the partition's rates. Latencies of collectives are not known and left out."""
    d, tensor, c, partition = setting.model.dimensions, setting.engine_tensor, setting.compute_bytes, setting.partition
    weights = d.layers * d.layer_weights + d.head_weights
    link = bus_bandwidth(partition, size=tensor, stride=1, gpus_per_node=setting.parallel.gpus_per_node)
    reduced = 2 * d.layers * 2 * (tensor - 1) / tensor * d.hidden * c
    return StepCosts(
        weights=c * weights / tensor / partition.memory_bandwidth.value,
        compute_per_sequence=2 * weights / tensor / partition.matmul_flops.value,
        kv_per_token=kv_bytes_per_token(setting) / partition.memory_bandwidth.value,
        overhead=partition.engine_step_s.value,
        overhead_per_sequence=partition.engine_sequence_s.value,
        collective_per_sequence=reduced / link,
    )


def generation(setting: Setting, memory: EngineMemory) -> Generation:
    """Simulate the engine that is dealt the longest completion."""
    lengths = setting.workload.lengths
    engines = layout(setting.config).generation_gpus // setting.engine_tensor
    own = lengths.completions[(len(lengths.completions) - 1) % engines :: engines]
    room = int(memory.kv_tokens // (lengths.prompt + lengths.mean))
    concurrent = max(1, min(len(own), memory.max_sequences, room))
    costs = step_costs(setting)
    stride = _stride(len(own))
    order = [own[(at * stride) % len(own)] for at in range(len(own))]
    spent = _simulate(order, lengths.prompt, concurrent, costs)
    prompts = -(-len(own) // setting.config.grpo.num_generations_per_prompt)  # the others are in the prefix cache
    prefill = prompts * lengths.prompt * costs.compute_per_sequence
    return Generation(engines, len(own), concurrent, *spent, prefill_s=prefill)


def _stride(count: int) -> int:
    """A step through `count` items that meets each once and none near its neighbours."""
    step = max(1, int(count * 0.618))
    while gcd(step, count) != 1:
        step += 1
    return step


def _simulate(
    lengths: Sequence[int], prompt: int, concurrent: int, costs: StepCosts
) -> tuple[int, float, float, float, float]:
    """Steps, and seconds of weights, KV cache, overhead and collectives, with continuous batching.

    Between two completions the number of sequences is constant and their contexts grow by one token a step.
    """
    waiting = list(reversed(lengths))
    running: list[int] = []  # the step at which each ends
    step, context = 0, 0  # tokens in the running sequences' contexts
    held: dict[int, list[int]] = {}  # end -> final contexts
    weights = cache = overhead = collective = 0.0
    while waiting or running:
        while waiting and len(running) < concurrent:
            length = waiting.pop()
            heapq.heappush(running, step + length)
            held.setdefault(step + length, []).append(prompt + length)
            context += prompt
        end = running[0]
        ahead, count = end - step, len(running)
        weights += ahead * max(costs.weights, count * costs.compute_per_sequence)
        cache += ahead * (context + count * (ahead + 1) / 2) * costs.kv_per_token
        overhead += ahead * (costs.overhead + count * costs.overhead_per_sequence)
        collective += ahead * count * costs.collective_per_sequence
        context += ahead * count
        step = end
        while running and running[0] == step:
            heapq.heappop(running)
        context -= sum(held.pop(step))
    return step, weights, cache, overhead, collective
