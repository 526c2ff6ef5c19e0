"""Golden test of the arguments that the engine is started with."""

from pathlib import Path

import pytest

from grpo.config.schema import Config
from grpo.workers.generation.vllm_arguments import context_length, engine_arguments
from tests.support.generation import make_config


def on_gpu(config: Config) -> Config:
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"gpus_per_node": 8})})


CASES = {
    "cpu": make_config("/models/m", backend="vllm"),
    "cpu-stop-strings": make_config("/models/m", backend="vllm", generation={"stop_strings": ["\n"]}),
    "cpu-random-weights": make_config("/models/m", backend="vllm", random_weights=True),
    "gpu": on_gpu(make_config("/models/m", backend="vllm", precision="bfloat16")),
    "gpu-all-options": on_gpu(
        make_config(
            "/models/m",
            backend="vllm",
            precision="bfloat16",
            generation={
                "colocated": {"sleep_level": 2},
                "vllm_cfg": {
                    "tensor_parallel_size": 4, "gpu_memory_utilization": 0.5, "max_model_len": 100,
                    "enforce_eager": True, "kv_cache_memory_bytes": 1 << 30, "max_num_seqs": 7,
                }
            },
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_arguments(case, snapshot):
    assert engine_arguments(CASES[case], Path("/models/m")) == snapshot


def test_the_context_is_the_engines_own_or_the_policys():
    assert context_length(CASES["cpu"]) == 256
    assert context_length(CASES["gpu-all-options"]) == 100
