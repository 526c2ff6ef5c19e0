"""What this version can run, said before anything starts. A configuration may be valid and yet ask for more."""

from __future__ import annotations

import torch

from grpo.config.schema import Config, Section
from grpo.errors import ConfigError


def world_size(config: Config) -> int:
    """Training processes that the configuration asks for."""
    return config.cluster.num_nodes * config.cluster.gpus_per_node or config.cluster.cpu_ranks


def device_of(config: Config) -> str:
    """The torch device of the training process."""
    return "cuda" if config.cluster.gpus_per_node else "cpu"


def check_runnable(config: Config) -> None:
    """Raise ConfigError naming the keys if this machine or this version cannot run the configuration."""
    asked = _cannot_run(config)
    if asked:
        raise ConfigError(
            "this version trains on at most one GPU, or with the PyTorch backend in several processes on the CPU; the "
            "recipe asks for "
            + ", ".join(asked)
            + ". Such a recipe can be resolved and printed (grpo config) but not trained yet."
        )
    if config.cluster.gpus_per_node and not torch.cuda.is_available():
        raise ConfigError(
            f"cluster.gpus_per_node={config.cluster.gpus_per_node}, but torch finds no CUDA GPU on this machine; "
            "cluster.gpus_per_node=0 trains on the CPU"
        )


def _cannot_run(config: Config) -> list[str]:
    policy, cluster, generation = config.policy, config.cluster, config.policy.generation
    asked = []
    if world_size(config) > max(1, cluster.cpu_ranks):
        asked.append(f"cluster.num_nodes={cluster.num_nodes} x cluster.gpus_per_node={cluster.gpus_per_node}")
    if policy.megatron_cfg.enabled:
        can_run = ("enabled", "activation_checkpointing", "distributed_data_parallel_config")
        asked += _changed(policy.megatron_cfg, "policy.megatron_cfg", can_run=can_run)
        if cluster.cpu_ranks > 1:
            asked.append(f"cluster.cpu_ranks={cluster.cpu_ranks} with policy.megatron_cfg.enabled=True")
    if policy.dtensor_cfg.enabled:
        several = ("tensor_parallel_size", "sequence_parallel") if cluster.cpu_ranks > 1 else ()
        asked += _changed(policy.dtensor_cfg, "policy.dtensor_cfg", can_run=("activation_checkpointing", *several))
    if not generation.colocated.enabled and cluster.gpus_per_node:
        asked.append("policy.generation.colocated.enabled=False")
    if generation.backend == "vllm" and generation.vllm_cfg.tensor_parallel_size > 1:
        asked.append(f"policy.generation.vllm_cfg.tensor_parallel_size={generation.vllm_cfg.tensor_parallel_size}")
    return asked


def _changed(section: Section, key: str, *, can_run: tuple[str, ...]) -> list[str]:
    """The settings of a backend that differ from their defaults, beyond those that can be run."""
    return [
        f"{key}.{name}={getattr(section, name)}"
        for name, field in type(section).model_fields.items()
        if name not in can_run and getattr(section, name) != field.default
    ]
