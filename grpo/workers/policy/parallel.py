"""The ranks that train one policy: data parallel x tensor parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from grpo.config.schema import Policy
from grpo.errors import ConfigError
from grpo.models.parallel_plans import check_tensor_parallel
from grpo.workers.policy.context_parallel import refuse_context_parallel

_SECTION = "policy.dtensor_cfg"


@dataclass(frozen=True)
class ParallelContext:
    """A mesh of `dp` x `tp` ranks; neighbours in rank order are of one tensor parallel group."""

    mesh: DeviceMesh
    sequence_parallel: bool
    cpu_offload: bool = False

    @classmethod
    def create(cls, policy: Policy, device_type: str) -> ParallelContext | None:
        """The mesh over the initialised default process group; None where there is none.

        One rank needs none, unless its parameters are to lie on the CPU.

        `device_type` is "cpu" (gloo) or "cuda" (nccl, each process on its own `torch.cuda.set_device`). All ranks must
        call it at once: it makes process groups. Their time-out is that of the default group.

        Raises:
            ConfigError: the ranks do not divide, or the settings ask for what this backend does not do.
        """
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        check_parallel(policy, world)
        if not dist.is_available() or not dist.is_initialized() or (world == 1 and not policy.dtensor_cfg.cpu_offload):
            return None
        tensor = policy.dtensor_cfg.tensor_parallel_size
        mesh = init_device_mesh(device_type, (world // tensor, tensor), mesh_dim_names=("dp", "tp"))
        return cls(mesh, policy.dtensor_cfg.sequence_parallel, policy.dtensor_cfg.cpu_offload)

    @property
    def device(self) -> torch.device:
        """Where this rank computes and exchanges."""
        return torch.device(self.mesh.device_type)

    @property
    def dp_size(self) -> int:
        return self.mesh.size(0)

    @property
    def tp_size(self) -> int:
        return self.mesh.size(1)

    @property
    def dp_rank(self) -> int:
        return self.mesh.get_local_rank("dp")

    @property
    def tp_rank(self) -> int:
        return self.mesh.get_local_rank("tp")

    @property
    def dp_group(self) -> dist.ProcessGroup:
        return self.mesh.get_group("dp")

    @property
    def tp_group(self) -> dist.ProcessGroup:
        return self.mesh.get_group("tp")

    @property
    def world_group(self) -> dist.ProcessGroup:
        return cast("dist.ProcessGroup", dist.group.WORLD)


def check_parallel(policy: Policy, world: int, model_config: Any | None = None) -> None:
    """Raise ConfigError if `world` ranks cannot train this policy, or not this model (a transformers config)."""
    settings = policy.dtensor_cfg
    refuse_context_parallel(policy)
    tensor = settings.tensor_parallel_size
    if world % tensor:
        raise ConfigError(f"{_SECTION}.tensor_parallel_size={tensor} does not divide the {world} ranks that train")
    if model_config is not None and tensor > 1:
        check_tensor_parallel(model_config, tensor)
