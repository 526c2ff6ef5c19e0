"""The process groups of a Megatron-Core worker, and this rank's place in them.

Imports Megatron-Core: import this module only where it is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
from megatron.core import parallel_state, tensor_parallel
from torch import distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from grpo.errors import ConfigError
from grpo.models.megatron.settings import ParallelSizes


@dataclass(frozen=True)
class Place:
    """Of a rank among the tensor (TP), pipeline (PP) and data (DP) parallel ranks."""

    tensor_rank: int
    pipeline_rank: int
    data_rank: int
    data_size: int
    sizes: ParallelSizes
    tensor_group: dist.ProcessGroup
    pipeline_group: dist.ProcessGroup

    @property
    def first_stage(self) -> bool:
        return self.pipeline_rank == 0

    @property
    def last_stage(self) -> bool:
        return self.pipeline_rank == self.sizes.pipeline - 1

    @property
    def speaks(self) -> bool:
        """Whether this rank reports its share of the batch: the others of the last stage know the same, or nothing."""
        return self.last_stage and self.tensor_rank == 0

    def layers(self, num_layers: int) -> range:
        """Numbers of the whole model's layers that are on this stage."""
        return stage_layers(num_layers, self.pipeline_rank, self.sizes.pipeline)


def stage_layers(num_layers: int, stage: int, stages: int) -> range:
    each = num_layers // stages
    return range(stage * each, (stage + 1) * each)


def join(sizes: ParallelSizes, device: torch.device, *, seed: int) -> Place:
    """Make Megatron's groups over all ranks, or take those of an earlier call over the same ranks with equal sizes.

    Without torch.distributed this process is made a world of its own.

    Raises:
        ConfigError: the ranks cannot be divided so.
    """
    if not dist.is_initialized():
        backend = "gloo" if device.type == "cpu" else "nccl"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timedelta(minutes=10))
    world, copy = dist.get_world_size(), sizes.tensor * sizes.pipeline
    if world % copy:
        raise ConfigError(
            f"policy.megatron_cfg.tensor_model_parallel_size={sizes.tensor} x pipeline_model_parallel_size="
            f"{sizes.pipeline}: one copy of the model takes {copy} ranks, which do not divide the {world} that train"
        )
    if parallel_state.model_parallel_is_initialized() and not _present(sizes):
        parallel_state.destroy_model_parallel()
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(sizes.tensor, sizes.pipeline, create_gloo_process_groups=False)
        _made_over[:] = [dist.group.WORLD]
    if device.type == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(seed)
    return Place(
        tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
        pipeline_rank=parallel_state.get_pipeline_model_parallel_rank(),
        data_rank=parallel_state.get_data_parallel_rank(),
        data_size=parallel_state.get_data_parallel_world_size(),
        sizes=sizes,
        tensor_group=parallel_state.get_tensor_model_parallel_group(),
        pipeline_group=parallel_state.get_pipeline_model_parallel_group(),
    )


_made_over: list[object] = []  # the process group of all ranks that Megatron's groups are parts of


def _present(sizes: ParallelSizes) -> bool:
    """Whether Megatron's groups are of these sizes, and torch.distributed has not been left and joined anew since."""
    return (
        _made_over == [dist.group.WORLD]
        and parallel_state.get_tensor_model_parallel_world_size() == sizes.tensor
        and parallel_state.get_pipeline_model_parallel_world_size() == sizes.pipeline
    )
