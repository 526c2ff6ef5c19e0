import pytest

from grpo.errors import ConfigError
from grpo.workers.policy.context_parallel import context_parallel_refusal, refuse_context_parallel
from tests.support.policy import tiny_config


def policy(backend, size):
    of_other = {"dtensor_cfg": {"enabled": False}} if backend == "megatron_cfg" else {}
    return tiny_config(policy={**of_other, backend: {"enabled": True, "context_parallel_size": size}}).policy


@pytest.mark.parametrize("backend", ["dtensor_cfg", "megatron_cfg"])
def test_the_refusal_says_why_and_what_to_do_instead(backend):
    tensor = {"dtensor_cfg": "tensor_parallel_size", "megatron_cfg": "tensor_model_parallel_size"}[backend]
    with pytest.raises(
        ConfigError, match=rf"{backend}\.context_parallel_size=2: .*; set 1, .* policy\.{backend}\.{tensor} "
    ):
        refuse_context_parallel(policy(backend, 2))
    assert context_parallel_refusal(policy(backend, 1)) is None
