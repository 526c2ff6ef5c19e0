"""The arguments that the vLLM engine is started with: every one that matters is given, none is left to a default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo.config.schema import Config
from grpo.models.locate import locate_model
from grpo.workers.generation.vllm_parallel import rank_arguments
from grpo.workers.protocol import WeightsFrom

CPU_CACHE_BYTES = 256 << 20  # vLLM would take 92 % of the machine's memory
LEAST_SEQS, MOST_SEQS = 256, 1024  # vLLM's own on small and on large GPUs


def context_length(config: Config) -> int:
    """Tokens of prompt and completion that the engine can hold."""
    return config.policy.generation.vllm_cfg.max_model_len or config.policy.max_total_sequence_length


def capture_sizes(largest: int) -> list[int]:
    """Batch sizes that CUDA graphs are captured for: close to each other where a step is short.

    vLLM captures every multiple of 8 up to 256 and of 16 up to 512, and runs larger batches without graphs. A batch is
    padded to the next size, by an eighth at most from 64 on.
    """
    sizes = [1, 2, 4, *range(8, 64, 8)]
    while sizes[-1] < largest:
        sizes.append(sizes[-1] + max(8, 1 << (sizes[-1].bit_length() - 4)))
    return [size for size in sizes if size < largest] + [largest]


def sequences_at_once(config: Config) -> int:
    """The most sequences that the engine decodes together: those of a step, in an async run of the steps ahead too."""
    limit = config.policy.generation.vllm_cfg.max_num_seqs
    if limit is not None:
        return limit
    grpo = config.grpo
    step = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
    steps = grpo.async_grpo.max_trajectory_age_steps + 1 if grpo.async_grpo.enabled else 1
    return min(MOST_SEQS, max(LEAST_SEQS, step * steps))


def engine_arguments(config: Config, model_path: Path, *, weights_from: WeightsFrom = "folder") -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM`.

    On a CPU nothing is compiled (`enforce_eager`) and the KV cache has a fixed size. The tokenizer is loaded only where
    stop strings need it.
    """
    policy, options = config.policy, config.policy.generation.vllm_cfg
    on_cpu = config.cluster.gpus_per_node == 0
    arguments: dict[str, Any] = {
        "model": str(model_path),
        "dtype": policy.precision,
        "max_model_len": context_length(config),
        "tensor_parallel_size": options.tensor_parallel_size,
        "enforce_eager": options.enforce_eager or on_cpu,
        "load_format": "dummy" if policy.random_weights or weights_from == "refit" else "safetensors",
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "generation_config": "vllm",  # no sampling defaults from the model's folder
        "trust_remote_code": False,
        "seed": config.grpo.seed,
        "disable_log_stats": True,
        "skip_tokenizer_init": not policy.generation.stop_strings,
    }
    if policy.generation.stop_strings:
        name = policy.tokenizer.name
        folder = model_path if name is None else locate_model(name, key="policy.tokenizer.name")
        arguments["tokenizer"] = str(folder)
    cache_bytes = options.kv_cache_memory_bytes or (CPU_CACHE_BYTES if on_cpu else None)
    if cache_bytes is not None:
        arguments["kv_cache_memory_bytes"] = cache_bytes
    if policy.generation.colocated.sleep_level and not on_cpu:
        arguments["enable_sleep_mode"] = True
    if not on_cpu:
        arguments["gpu_memory_utilization"] = options.gpu_memory_utilization
        arguments["max_num_seqs"] = sequences_at_once(config)
        if not options.enforce_eager:
            arguments["cudagraph_capture_sizes"] = capture_sizes(sequences_at_once(config))
            if not options.torch_compile:
                arguments["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    if config.grpo.async_grpo.in_flight_weight_updates:
        # Tokens under way during an update would be taken for the new weights'.
        arguments["async_scheduling"] = False
    if options.max_num_seqs is not None:
        arguments["max_num_seqs"] = options.max_num_seqs
    return {**arguments, **rank_arguments(options.tensor_parallel_size, on_cpu=on_cpu)}
