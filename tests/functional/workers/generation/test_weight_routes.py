"""Traced copies into vLLM's own models, which put q, k and v into one matrix and pad the vocabulary."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from grpo.workers.generation.expected_weights import ExpectedWeights
from grpo.workers.generation.vllm_compat import _environment, _random_state, _thread_setting
from grpo.workers.generation.weight_routes import WeightRoutes
from tests.support.generation import weights_of, write_model

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300), pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Iterator[None]:
    """vLLM's groups of ranks, of this process alone."""
    with _environment({"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}), _random_state(), _thread_setting():
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.distributed import parallel_state

        method = f"file://{tmp_path_factory.mktemp('ranks') / 'store'}"
        with set_current_vllm_config(VllmConfig()):
            parallel_state.init_distributed_environment(1, 0, method, 0, "gloo")
            parallel_state.initialize_model_parallel(1, 1, backend="gloo")
            yield
        parallel_state.cleanup_dist_env_and_memory()


def unpacked_model(folder) -> nn.Module:
    """A model of vLLM as it is on a GPU: nothing is packed after loading."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    arguments = EngineArgs(
        model=str(folder), dtype="float32", enforce_eager=True, skip_tokenizer_init=True, max_model_len=64
    )
    model = initialize_model(arguments.create_engine_config())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("qwen2", True), ("qwen3", False)])
def test_copies_are_those_of_vllms_loader(alone, tmp_path, family, tied):
    folder = write_model(tmp_path / "m", family, tied=tied)
    expected = ExpectedWeights.of_folder(folder)
    traced, loaded = unpacked_model(folder), unpacked_model(folder)
    routes = WeightRoutes.traced(traced, expected.shapes, torch.float32)
    assert all(bool((each == 0).all()) for each in traced.parameters()), "tracing changed a weight"
    for name, tensor in weights_of(folder):
        routes.load(name, tensor)
    loaded.load_weights(weights_of(folder))
    for name, parameter in traced.named_parameters():
        assert torch.equal(parameter, dict(loaded.named_parameters())[name]), name
