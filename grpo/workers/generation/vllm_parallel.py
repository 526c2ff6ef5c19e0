"""vLLM over several ranks: each is a process that holds an engine of its own, and all do the same."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from grpo.errors import GenerationError

# While an engine starts: every rank sees its own GPU alone, as device 0, whatever torchrun's variable says.
START_ENVIRONMENT = {"LOCAL_RANK": "0", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}
_ON_GPUS = "external_launcher"
_ON_CPUS = "grpo.workers.generation.vllm_cpu_ranks.CpuRankExecutor"


def check_ranks(size: int) -> None:
    """Refuse an engine of `size` ranks where there are not as many.

    Raises:
        GenerationError: the process group, without which there is one rank, is of another size.
    """
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if size > 1 and ranks != size:
        raise GenerationError(
            f"policy.generation.vllm_cfg.tensor_parallel_size={size}: an engine in the process of the trainer has one "
            "rank; set cluster.launcher=ray, or 1"
        )


def rank_arguments(size: int, *, on_cpu: bool) -> dict[str, Any]:
    """Of `vllm.LLM` on each of `size` ranks that have joined a process group.

    Nothing may depend on when things happen, or the ranks would schedule differently: no asynchronous scheduling.
    vLLM's own all-reduce needs to see the GPUs of the other ranks, so NCCL's is used.
    """
    if size == 1:
        return {}
    arguments = {"distributed_executor_backend": _ON_CPUS if on_cpu else _ON_GPUS, "async_scheduling": False}
    return arguments if on_cpu else {**arguments, "disable_custom_all_reduce": True}
