"""Arguments of an engine's ranks, without vLLM."""

import pytest

from grpo.errors import GenerationError
from grpo.workers.generation.vllm_parallel import check_ranks, rank_arguments


def test_one_rank_needs_nothing():
    assert rank_arguments(1, on_cpu=True) == rank_arguments(1, on_cpu=False) == {}
    check_ranks(1)


def test_several_ranks_schedule_alike():
    on_gpus = rank_arguments(2, on_cpu=False)
    assert on_gpus["distributed_executor_backend"] == "external_launcher"
    assert on_gpus["async_scheduling"] is False
    assert on_gpus["disable_custom_all_reduce"] is True  # each sees its own GPU alone
    on_cpus = rank_arguments(2, on_cpu=True)
    assert on_cpus["distributed_executor_backend"].endswith(".CpuRankExecutor")
    assert on_cpus["async_scheduling"] is False


def test_several_ranks_need_processes():
    with pytest.raises(GenerationError, match=r"tensor_parallel_size=2.*cluster.launcher=ray"):
        check_ranks(2)
