"""The policy that the configuration asks for, where it asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from grpo.config import layout
from grpo.config.schema import Config
from grpo.errors import ConfigError
from grpo.workers.groups.ray_group import RayGroup
from grpo.workers.groups.rendezvous import join_process_group
from grpo.workers.groups.reservation import Reservation
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.group import PolicyGroup
from grpo.workers.policy.parallel import ParallelContext
from grpo.workers.policy.rank_policy import RankPolicy
from grpo.workers.protocol import StatefulPolicy


@contextmanager
def started_policy(config: Config, reservation: Reservation | None) -> Iterator[StatefulPolicy | PolicyGroup]:
    """The policy in this process, or with a reservation in a worker for each of its ranks, ended on leaving.

    Raises:
        ConfigError, ModelError: as the policy raises them in this process.
        WorkerError: a worker raised, died or did not start within `cluster.worker_timeout_s`.
    """
    if reservation is None:
        yield make_policy(config)
        return
    with ExitStack() as stack:
        group = RayGroup(
            make_rank, [config], reservation=reservation, deadline_s=config.cluster.worker_timeout_s,
            environment={"OMP_NUM_THREADS": str(config.cluster.cpu_threads or 1)},
        )  # fmt: skip
        stack.callback(group.shutdown)
        yield PolicyGroup(group)


def make_rank(config: Config) -> RankPolicy:
    """One rank of the policy, in the process where it is to be; all ranks at the same time."""
    on_gpu = config.cluster.gpus_per_node > 0
    if config.cluster.cpu_threads is not None:
        torch.set_num_threads(config.cluster.cpu_threads)
    if layout(config).training_gpus > 1:
        join_process_group("nccl" if on_gpu else "gloo", timeout_s=config.cluster.worker_timeout_s)
    parallel = ParallelContext.create(config.policy, "cuda" if on_gpu else "cpu")
    return RankPolicy(make_policy, config, parallel)


def make_policy(config: Config, parallel: ParallelContext | None = None) -> StatefulPolicy:
    """Load the model on the enabled backend, in this process; `parallel` is this rank's place in a layout of several.

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
