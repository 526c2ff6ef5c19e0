import sys

import pytest

from grpo.errors import ConfigError
from grpo.workers.policy.dtensor import DTensorPolicy
from grpo.workers.policy.factory import make_policy
from tests.support.policy import tiny_config


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
