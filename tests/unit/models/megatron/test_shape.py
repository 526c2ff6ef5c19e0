import pytest
import torch
from transformers import Gemma2Config, LlamaConfig

from grpo.errors import ModelError
from grpo.models.megatron.shape import ModelShape
from tests.support.policy import tiny_model

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip


def test_what_the_families_differ_in():
    shapes = {
        kind: ModelShape.of(tiny_model(kind, tied=kind == "qwen3").config) for kind in ("llama", "qwen2", "qwen3")
    }
    assert {kind: (each.qkv_bias, each.qk_norm, each.tied) for kind, each in shapes.items()} == {
        "llama": (False, False, False), "qwen2": (True, False, False), "qwen3": (False, True, True),
    }  # fmt: skip
    llama = shapes["llama"]
    assert (llama.num_heads, llama.num_query_groups, llama.head_dim, llama.hidden_size) == (4, 2, 8, 24)
    assert llama.padding_token == 0


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_counts_are_those_of_transformers(kind):
    model = tiny_model(kind, tied=False)
    matrices = sum(each.numel() for each in model.parameters() if each.ndim == 2)
    shape = ModelShape.of(model.config)
    assert shape.matrix_parameters == matrices - model.model.embed_tokens.weight.numel()
    assert shape.attention_width == 2 * 4 * 8


def test_rotary_frequencies_are_those_of_the_formula():
    plain = ModelShape.of(tiny_model().config).rotary_frequencies
    torch.testing.assert_close(plain, torch.tensor([10000.0 ** (-i / 4) for i in range(4)]))
    scaled = ModelShape.of(tiny_model(rope_parameters=LLAMA3).config).rotary_frequencies
    # Wavelengths 6.3, 63, 628 and 6283 against bounds 16 and 64: kept, smoothed, and divided by 8.
    assert scaled[0] == plain[0]
    assert plain[1] / 8 < scaled[1] < plain[1]
    torch.testing.assert_close(scaled[2:], plain[2:] / 8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_bias": True}, "attention_bias True"),
        ({"mlp_bias": True}, "mlp_bias True"),
        ({"attention_dropout": 0.1}, "attention_dropout 0.1"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}}, "rope_type 'yarn'"),
    ],
)
def test_what_megatron_would_compute_otherwise_is_refused(settings, message):
    config = LlamaConfig(hidden_size=24, num_attention_heads=4, num_key_value_heads=2, **settings)
    with pytest.raises(ModelError, match=message):
        ModelShape.of(config)


def test_another_architecture_is_refused():
    with pytest.raises(ModelError, match=r"model_type 'gemma2'.*supported: llama, qwen2, qwen3"):
        ModelShape.of(Gemma2Config())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((4, 1), r"tensor_model_parallel_size=4 does not divide the model's num_key_value_heads 2"),
        ((3, 1), r"tensor_model_parallel_size=3 does not divide the model's num_attention_heads 4"),
        ((1, 3), r"pipeline_model_parallel_size=3 does not divide the model's num_hidden_layers 2"),
    ],
)
def test_a_layout_that_does_not_divide_is_refused(sizes, message):
    with pytest.raises(ModelError, match=message):
        ModelShape.of(tiny_model().config).check_layout(tensor_parallel=sizes[0], pipeline_parallel=sizes[1])
    ModelShape.of(tiny_model().config).check_layout(tensor_parallel=2, pipeline_parallel=2)
