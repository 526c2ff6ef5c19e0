"""What this version can run, said before anything starts. A configuration may be valid and yet ask for more."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from grpo.config.schema import Config
from grpo.errors import ConfigError
from grpo.workers.policy.context_parallel import context_parallel_refusal


def world_size(config: Config) -> int:
    """Devices that the configuration asks for: GPUs, or the training processes of a CPU run."""
    return config.cluster.num_nodes * config.cluster.gpus_per_node or config.cluster.cpu_ranks


def device_of(config: Config) -> str:
    """The torch device of the training processes."""
    return "cuda" if config.cluster.gpus_per_node else "cpu"


def check_runnable(config: Config) -> None:
    """Raise ConfigError naming the keys if this machine or this version cannot run the configuration."""
    found = list(refusals(config))
    if found:
        raise ConfigError("this version cannot train what is asked for (grpo config takes it):\n" + "\n".join(found))
    _check_gpus(config)


def refusals(config: Config) -> Iterator[str]:
    """What no machine makes trainable, each naming its keys."""
    context_parallel = context_parallel_refusal(config.policy)
    if context_parallel is not None:
        yield context_parallel


def _check_gpus(config: Config) -> None:
    """Of this machine, unless an existing cluster has them: what that lacks is found when it is joined."""
    cluster = config.cluster
    if not cluster.gpus_per_node or cluster.ray_address is not None:
        return
    asked = f"cluster.gpus_per_node={cluster.gpus_per_node}"
    if cluster.num_nodes > 1:
        raise ConfigError(
            f"cluster.num_nodes={cluster.num_nodes} without cluster.ray_address: a Ray that is started here has this "
            "machine alone; give the address of a Ray cluster that runs on all nodes, or one node"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"{asked}, but torch finds no CUDA GPU on this machine; cluster.gpus_per_node=0 trains on the CPU"
        )
    if cluster.gpus_per_node > torch.cuda.device_count():
        raise ConfigError(f"{asked}, but torch finds {torch.cuda.device_count()} CUDA GPUs on this machine")
