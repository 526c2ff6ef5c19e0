import pytest
import torch
from transformers import LlamaConfig

from grpo.errors import ConfigError
from grpo.workers.policy.parallel import ParallelContext, check_parallel
from tests.support.policy import tiny_config
from tests.support.pretended_ranks import lone_rank, pretended_ranks


def policy(**dtensor):
    return tiny_config(policy={"dtensor_cfg": dtensor}).policy


def test_one_process_needs_no_process_group():
    assert ParallelContext.create(policy(), "cpu") is None


def test_ranks_of_a_tensor_parallel_group_are_neighbours():
    with pretended_ranks(6, rank=3):
        context = ParallelContext.create(policy(tensor_parallel_size=2, sequence_parallel=True), "cpu")
        assert (context.dp_size, context.tp_size) == (3, 2)
        assert (context.dp_rank, context.tp_rank) == (1, 1)
        assert (context.dp_group.size(), context.tp_group.size(), context.world_group.size()) == (3, 2, 6)
        assert context.sequence_parallel
        assert context.device == torch.device("cpu")


def test_a_single_rank_has_a_mesh_only_to_keep_its_parameters_on_the_cpu():
    with lone_rank():
        assert ParallelContext.create(policy(), "cpu") is None
        context = ParallelContext.create(policy(cpu_offload=True), "cpu")
        assert (context.dp_size, context.tp_size, context.cpu_offload) == (1, 1, True)


@pytest.mark.parametrize(
    ("settings", "world", "message"),
    [
        ({"tensor_parallel_size": 2}, 1, r"tensor_parallel_size=2 does not divide the 1 ranks"),
        ({"tensor_parallel_size": 4}, 6, r"tensor_parallel_size=4 does not divide the 6 ranks"),
        ({"context_parallel_size": 2}, 2, r"context_parallel_size=2: .* no context parallel.*tensor_parallel_size"),
    ],
)
def test_what_the_ranks_cannot_do_is_refused(settings, world, message):
    with pytest.raises(ConfigError, match=message):
        check_parallel(policy(**settings), world)


def test_a_model_that_does_not_divide_is_refused_with_what_would():
    config = LlamaConfig(num_attention_heads=8, num_key_value_heads=2, intermediate_size=24)
    check_parallel(policy(tensor_parallel_size=2), 4, config)
    with pytest.raises(ConfigError, match=r"size=4 .*num_key_value_heads of 2; possible: \[1, 2\]"):
        check_parallel(policy(tensor_parallel_size=4), 4, config)
