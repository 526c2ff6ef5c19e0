"""Shapes under pretended ranks; numbers of real ones in tests/functional/workers/policy."""

import pytest
import torch

from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.parallel import ParallelContext
from grpo.workers.policy.sharded import own_part
from tests.support.policy import tiny_config, tiny_model
from tests.support.pretended_ranks import pretended_ranks


@pytest.mark.parametrize(("data", "tensor"), [(1, 2), (3, 1), (3, 2), (5, 4)])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_parts_of_all_ranks_make_up_every_parameter(data, tensor, precision):
    shape = {"num_attention_heads": 4, "num_key_value_heads": 4}
    expected = dict(tiny_model("qwen3", **shape).named_parameters())
    seen = {name: torch.zeros(each.shape) for name, each in expected.items()}
    config = tiny_config(policy={"dtensor_cfg": {"tensor_parallel_size": tensor}, "precision": precision})
    for rank in range(data * tensor):
        with pretended_ranks(data * tensor, rank):
            parallel = ParallelContext.create(config.policy, "cpu")
            policy = DTensorPolicy(tiny_model("qwen3", **shape), config, parallel=parallel)
            parameters = dict(policy._masters.named_parameters())
            assert parameters.keys() == expected.keys()
            for name, each in parameters.items():
                part = own_part(each, parallel)
                assert each.dtype == torch.float32
                assert torch.equal(each.to_local(), expected[name][part]), name
                seen[name][part] += 1
    for name, each in seen.items():
        copies = tensor if "norm" in name else 1
        assert (each == copies).all(), name
