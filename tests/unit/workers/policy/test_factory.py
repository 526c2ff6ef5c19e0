"""Which policy a configuration gets, where it runs, and what one of its ranks is made of."""

import sys

import pytest
import torch
import torch.distributed as dist

from grpo.errors import ConfigError
from grpo.refit.manifest import Weight
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.factory import _cpu_threads, make_policy, make_rank, started_policy
from tests.support.policy import tiny_config
from tests.support.small_run import small


def config(*, megatron):
    policy = {
        "model_name": "tiny-digits", "random_weights": True, "dtensor_cfg": {"enabled": not megatron},
        "megatron_cfg": {"enabled": megatron},
    }  # fmt: skip
    made = tiny_config(policy=policy)
    return made.model_copy(update={"cluster": made.cluster.model_copy(update={"gpus_per_node": 0})})


def test_the_pytorch_backend_is_the_default():
    assert isinstance(make_policy(config(megatron=False)), DTensorPolicy)


def test_a_missing_megatron_names_the_extra_to_install(monkeypatch):
    for name in [
        name for name in sys.modules if name.startswith(("megatron", "grpo.models.megatron.", "grpo.workers.megatron."))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "megatron", None)
    with pytest.raises(ConfigError, match=r"megatron-core is not installed: pip install 'grpo-matrix\[megatron\]'"):
        make_policy(config(megatron=True))


def test_without_a_reservation_it_is_in_this_process(tmp_path):
    with started_policy(small(tmp_path).config, None) as policy:
        assert isinstance(policy, DTensorPolicy)


@pytest.mark.parametrize(("offload", "cores", "gpus", "expected"), [
    (False, 64, 8, None), (True, 64, 8, 8), (True, 16, 1, 16), (True, 2, 8, 1),
])  # fmt: skip
def test_ranks_whose_optimizer_is_on_the_cpu_share_its_cores(offload, cores, gpus, expected):
    made = tiny_config(policy={"dtensor_cfg": {"cpu_offload": offload}})
    made = made.model_copy(update={"cluster": made.cluster.model_copy(update={"gpus_per_node": gpus})})
    assert _cpu_threads(made, cores=cores) == expected


def test_one_rank_alone_is_that_policy_without_a_process_group(tmp_path):
    config = small(tmp_path).config
    rank = make_rank(config)
    assert not dist.is_initialized()
    assert torch.get_num_threads() == config.cluster.cpu_threads
    assert rank.weight_version() == 0
    assert torch.initial_seed() == config.grpo.seed, "two runs draw the same in their ranks too"
    described, weights = rank._policy.describe_weights(), dict(rank._policy.export_weights())
    assert described == [Weight.of(name, tensor) for name, tensor in weights.items()]
    expected = dict(DTensorPolicy.from_config(config).export_weights())
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
