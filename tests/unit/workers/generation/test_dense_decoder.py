"""The fast decoder against transformers' own forward: float32, 1e-5."""

from typing import Any

import pytest
import torch

from grpo.models.loading import load_model
from grpo.workers.generation.dense_decoder import DenseDecoder, fused_names, supports
from grpo.workers.generation.engine_weights import EngineWeights
from tests.support.decoder_check import check_against_forward
from tests.support.generation import VOCABULARY, Family, weights_of, write_model

PROMPTS = [[7, 3, 250, 9, 12], [11], [5, 6, 7, 8, 9, 10, 11, 12, 13]]
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
SHAPES: dict[str, tuple[Family, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tied": True}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1}),
    "llama-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-biases": ("llama", {"attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tied": True, "num_hidden_layers": 3}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied": ("qwen3", {"tied": True, "num_key_value_heads": 1}),
}


def dense(model: Any) -> tuple[DenseDecoder, EngineWeights]:
    weights = EngineWeights(model.requires_grad_(False), VOCABULARY, fused_names(model))
    return DenseDecoder(model, weights), weights


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prompts", [PROMPTS, [[4, 5, 6], [9, 8, 7]]], ids=["ragged", "even"])
def test_equals_the_forward_of_transformers(tmp_path, shape, prompts):
    family, changes = SHAPES[shape]
    folder = write_model(tmp_path, family, **changes)
    model = load_model(folder, dtype=torch.float32)
    assert supports(model)
    decoder, _ = dense(load_model(folder, dtype=torch.float32))
    check_against_forward(decoder, model, prompts)
    check_against_forward(decoder, model, prompts[::-1])


@pytest.mark.parametrize("shape", ["llama-tied", "qwen2", "qwen3"])
def test_new_weights_are_used_after_bind(tmp_path, shape):
    family, changes = SHAPES[shape]
    folder, other = write_model(tmp_path / "a", family, seed=1, **changes), tmp_path / "b"
    write_model(other, family, seed=2, **changes)
    decoder, weights = dense(load_model(folder, dtype=torch.float32))
    weights.replace(weights_of(other))
    decoder.bind()
    check_against_forward(decoder, load_model(other, dtype=torch.float32), PROMPTS)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"mlp_bias": True},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ],
    ids=["activation", "mlp-bias", "dynamic-rope"],
)
def test_what_it_cannot_compute_is_left_to_transformers(tmp_path, changes):
    assert not supports(load_model(write_model(tmp_path, **changes), dtype=torch.float32))


def test_sliding_windows_are_left_to_transformers(tmp_path):
    folder = write_model(tmp_path, "qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    assert not supports(load_model(folder, dtype=torch.float32))
