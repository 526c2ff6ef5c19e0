from transformers import LlamaConfig, Qwen3Config

from grpo.models.dimensions import Dimensions
from grpo.models.loading import load_model_config
from grpo.models.public import public_shape


def test_a_config_with_every_size_different():
    config = Qwen3Config(
        vocab_size=110, hidden_size=12, intermediate_size=20, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
    )  # fmt: skip
    found = Dimensions.of(config)
    assert found == Dimensions(3, 12, 20, 6, 2, 8, 110, tied=True, norms_heads=True)
    assert (found.query_width, found.kv_width) == (48, 16)
    assert found.layer_weights == 12 * 48 + 2 * 12 * 16 + 48 * 12 + 3 * 12 * 20
    assert found.head_weights == 12 * 110


def test_the_head_width_follows_from_the_hidden_size_where_it_is_not_given():
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=False)
    found = Dimensions.of(config)
    assert (found.head_dim, found.tied, found.norms_heads) == (8, False, False)


def test_qwen_2_5_has_no_head_width_in_its_config():
    assert Dimensions.of(load_model_config(public_shape("Qwen/Qwen2.5-7B"))).head_dim == 128
