"""Where the policy runs, and what one of its ranks is made of."""

import torch
import torch.distributed as dist

from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.factory import make_rank, started_policy
from tests.support.small_run import small


def test_without_a_reservation_it_is_in_this_process(tmp_path):
    with started_policy(small(tmp_path).config, None) as policy:
        assert isinstance(policy, DTensorPolicy)


def test_one_rank_alone_is_that_policy_without_a_process_group(tmp_path):
    config = small(tmp_path).config
    rank = make_rank(config)
    assert not dist.is_initialized()
    assert torch.get_num_threads() == config.cluster.cpu_threads
    assert rank.weight_version() == 0
    weights = dict(tensor.unpack() for tensor in rank.open_weights(10**9))
    expected = dict(DTensorPolicy.from_config(config).export_weights())
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
