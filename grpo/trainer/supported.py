"""What this version can run, said before anything starts. A configuration may be valid and yet ask for more."""

from __future__ import annotations

import torch

from grpo.config.schema import Config
from grpo.errors import ConfigError


def world_size(config: Config) -> int:
    """Training processes that the configuration asks for; a CPU run (gpus_per_node 0) has one."""
    return max(1, config.cluster.num_nodes * config.cluster.gpus_per_node)


def device_of(config: Config) -> str:
    """The torch device of the training process."""
    return "cuda" if config.cluster.gpus_per_node else "cpu"


def check_runnable(config: Config) -> None:
    """Raise ConfigError naming the keys if this machine or this version cannot run the configuration."""
    policy = config.policy
    refused = {
        f"policy.megatron_cfg.enabled={policy.megatron_cfg.enabled}": policy.megatron_cfg.enabled,
        f"cluster.num_nodes={config.cluster.num_nodes} x cluster.gpus_per_node={config.cluster.gpus_per_node}": (
            world_size(config) > 1
        ),
        f"policy.dtensor_cfg.tensor_parallel_size={policy.dtensor_cfg.tensor_parallel_size}": (
            policy.dtensor_cfg.enabled and policy.dtensor_cfg.tensor_parallel_size > 1
        ),
        f"policy.dtensor_cfg.context_parallel_size={policy.dtensor_cfg.context_parallel_size}": (
            policy.dtensor_cfg.enabled and policy.dtensor_cfg.context_parallel_size > 1
        ),
        f"policy.dtensor_cfg.cpu_offload={policy.dtensor_cfg.cpu_offload}": (
            policy.dtensor_cfg.enabled and policy.dtensor_cfg.cpu_offload
        ),
        "policy.generation.colocated.enabled=false": not policy.generation.colocated.enabled,
        f"policy.generation.vllm_cfg.tensor_parallel_size={policy.generation.vllm_cfg.tensor_parallel_size}": (
            policy.generation.backend == "vllm" and policy.generation.vllm_cfg.tensor_parallel_size > 1
        ),
    }
    asked = [what for what, beyond in refused.items() if beyond]
    if asked:
        raise ConfigError(
            "this version trains in one process with the PyTorch backend on at most one GPU; the recipe asks for "
            + ", ".join(asked)
            + ". Such a recipe can be resolved and printed (grpo config) but not trained yet."
        )
    if config.cluster.gpus_per_node and not torch.cuda.is_available():
        raise ConfigError(
            f"cluster.gpus_per_node={config.cluster.gpus_per_node}, but torch finds no CUDA GPU on this machine; "
            "cluster.gpus_per_node=0 trains on the CPU"
        )
