"""The policy that the configuration asks for, where it asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist

from grpo.checkpoint.rng import seed_rng
from grpo.config import layout
from grpo.config.schema import Config
from grpo.errors import ConfigError
from grpo.workers.groups.ray_group import RayGroup
from grpo.workers.groups.rendezvous import join_process_group, leave_process_group
from grpo.workers.groups.reservation import Room
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.group import PolicyGroup
from grpo.workers.policy.parallel import ParallelContext
from grpo.workers.policy.rank_policy import RankPolicy
from grpo.workers.protocol import StatefulPolicy


@contextmanager
def started_policy(config: Config, room: Room | None) -> Iterator[StatefulPolicy | PolicyGroup]:
    """The policy in this process, or with room for workers in one for each of its ranks, ended on leaving.

    Raises:
        ConfigError, ModelError: as the policy raises them in this process.
        WorkerError: a worker raised, died or did not start within `cluster.worker_timeout_s`.
    """
    with ExitStack() as stack:
        if room is None:
            if _offloads(config) and not dist.is_initialized():  # an engine may have made this process one rank
                stack.callback(leave_process_group)
            yield _policy_of_rank(config)
            return
        group = RayGroup(
            make_rank, [config], reservation=room, deadline_s=config.cluster.worker_timeout_s,
            environment={"OMP_NUM_THREADS": str(config.cluster.cpu_threads or 1)},
        )  # fmt: skip
        stack.callback(group.shutdown)
        yield PolicyGroup(group)


def make_rank(config: Config) -> RankPolicy:
    """One rank of the policy, in the process where it is to be; all ranks at the same time."""
    threads = _cpu_threads(config, cores=len(os.sched_getaffinity(0)))
    if threads is not None:
        torch.set_num_threads(threads)
    if config.cluster.gpus_per_node > 0 and torch.cuda.is_available():
        torch.cuda.set_device(0)  # the only one here; a mesh would otherwise choose that of this rank's number
        torch.zeros((), device="cuda")  # and does so unless CUDA is in use
    made = RankPolicy(_policy_of_rank, config)
    seed_rng(config.grpo.seed + (dist.get_rank() if dist.is_initialized() else 0))  # two runs are the same here too
    return made


def _policy_of_rank(config: Config) -> StatefulPolicy:
    """The policy, among the ranks that the environment names."""
    on_gpu = config.cluster.gpus_per_node > 0
    if (layout(config).training_gpus > 1 or _offloads(config)) and not dist.is_initialized():
        join_process_group("nccl" if on_gpu else "gloo", timeout_s=config.cluster.worker_timeout_s)
    if config.policy.megatron_cfg.enabled:
        return make_policy(config)
    return make_policy(config, ParallelContext.create(config.policy, "cuda" if on_gpu else "cpu"))


def _cpu_threads(config: Config, *, cores: int) -> int | None:
    """Of torch in a rank on a node with so many cores; None: what its environment says."""
    if config.cluster.cpu_threads is not None or not _offloads(config):
        return config.cluster.cpu_threads
    return max(1, cores // config.cluster.gpus_per_node)  # gradients are added, and Adam's step is made, on the CPU


def _offloads(config: Config) -> bool:
    """Whether parameters lie on the CPU, which sharded ones alone can, be it over one rank."""
    return config.policy.dtensor_cfg.enabled and config.policy.dtensor_cfg.cpu_offload


def make_policy(config: Config, parallel: ParallelContext | None = None) -> StatefulPolicy:
    """Load the model on the enabled backend, in this process.

    `parallel` is this rank's place in a layout of the PyTorch backend; Megatron-Core's makes its own from the
    configuration, over the default process group.

    Raises:
        ConfigError: the backend is not installed, or there is no GPU where one is asked for.
        ModelError: the model's folder is missing, unreadable or of an unsupported architecture.
    """
    if not config.policy.megatron_cfg.enabled:
        return DTensorPolicy.from_config(config, parallel)
    try:
        from grpo.workers.megatron.policy import MegatronPolicy
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("megatron"):
            raise
        raise ConfigError(
            "policy.megatron_cfg.enabled is true but megatron-core is not installed: "
            "pip install 'grpo-matrix[megatron]'"
        ) from error
    return MegatronPolicy.from_config(config)
