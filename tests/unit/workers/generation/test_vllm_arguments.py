"""Golden test of the arguments that the engine is started with."""

from pathlib import Path

import pytest

from grpo.config.schema import Config
from grpo.config.schema.algorithm import AsyncGrpo
from grpo.workers.generation.vllm_arguments import capture_sizes, context_length, engine_arguments, sequences_at_once
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


@pytest.mark.parametrize("largest", [1, 2, 3, 8, 60, 256, 1000, 1024])
def test_graphs_fit_every_batch_closely(largest):
    sizes = capture_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    for batch in range(1, largest + 1):
        size = next(each for each in sizes if each >= batch)
        assert size - batch < max(8, batch / 8)
    assert len(sizes) < 45


def test_graphs_are_captured_for_the_sequences_of_a_step_and_of_the_steps_ahead_in_an_async_run():
    assert sequences_at_once(CASES["gpu"]) == 32 * 16
    assert sequences_at_once(CASES["gpu-all-options"]) == 7
    ahead = AsyncGrpo(enabled=True, max_trajectory_age_steps=2)
    grpo = CASES["gpu"].grpo.model_copy(update={"async_grpo": ahead, "num_prompts_per_step": 4})
    assert sequences_at_once(CASES["gpu"].model_copy(update={"grpo": grpo})) == 256
    some = grpo.model_copy(update={"num_prompts_per_step": 10})
    assert sequences_at_once(CASES["gpu"].model_copy(update={"grpo": some})) == 3 * 10 * 16
    many = grpo.model_copy(update={"num_prompts_per_step": 400})
    assert sequences_at_once(CASES["gpu"].model_copy(update={"grpo": many})) == 1024


@pytest.mark.parametrize("case", ["cpu", "gpu"])
def test_where_a_refit_comes_first_no_weights_are_read(case):
    folder = Path("/models/m")
    assert engine_arguments(CASES[case], folder)["load_format"] == "safetensors"
    changed = engine_arguments(CASES[case], folder, weights_from="refit")
    assert changed == engine_arguments(CASES[case], folder) | {"load_format": "dummy"}


def test_graphs_of_vllms_own_kernels_are_captured_where_nothing_is_to_be_compiled():
    options = make_config("/models/m", backend="vllm", generation={"vllm_cfg": {"torch_compile": False}})
    arguments = engine_arguments(on_gpu(options), Path("/models/m"))
    assert arguments["compilation_config"] == {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    assert arguments["cudagraph_capture_sizes"][-1] == 512
    assert "compilation_config" not in engine_arguments(options, Path("/models/m"))
