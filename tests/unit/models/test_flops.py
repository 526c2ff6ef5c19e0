"""Against torch's own counter, which sees every matrix product and counts the whole square of attention."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from grpo.models.dimensions import Dimensions
from grpo.models.flops import Flops, forward_flops, head_recompute_flops, recompute_flops, training_flops
from grpo.models.loading import load_model_config
from grpo.models.public import public_shape

ROWS, WIDTH = 3, 10
SIZES = {
    "vocab_size": 70, "hidden_size": 24, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2,
}  # fmt: skip
CONFIGS = [
    LlamaConfig(**SIZES, head_dim=4), Qwen2Config(**SIZES), Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True),
]  # fmt: skip


def counted(config, *, backward):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    counter, angles = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with angles:  # positions times frequencies are a product too, in some models
        model.model.rotary_emb(torch.zeros(1), torch.arange(WIDTH)[None])
    with counter:
        logits = model(torch.zeros(ROWS, WIDTH, dtype=torch.int64), use_cache=False).logits
        if backward:
            logits.sum().backward()
    dimensions = Dimensions.of(config)
    upper_half = 2 * WIDTH**2 * dimensions.query_width * dimensions.layers * ROWS
    return counter.get_total_flops() - angles.get_total_flops() - (3 if backward else 1) * upper_half


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_forward_is_what_torch_counts_less_half_of_attention(config):
    assert forward_flops(Dimensions.of(config), [WIDTH] * ROWS, ROWS * WIDTH).total == counted(config, backward=False)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_training_is_what_torch_counts_less_half_of_attention(config):
    assert training_flops(Dimensions.of(config), [WIDTH] * ROWS, ROWS * WIDTH).total == counted(config, backward=True)


def test_by_hand():
    dimensions = Dimensions(layers=2, hidden=3, intermediate=5, heads=2, kv_heads=1, head_dim=4, vocab=7)
    # A layer: q 3x8, k and v 3x4 each, o 8x3, three of 3x5: 24 + 24 + 24 + 45 = 117 weights.
    assert forward_flops(dimensions, [4, 6], 9) == Flops(
        layers=2 * 10 * 2 * 117, attention=2 * (16 + 36) * 8 * 2, head=2 * 9 * 21
    )
    assert recompute_flops(dimensions, [4, 6]).head == 0
    assert head_recompute_flops(dimensions, 9) == Flops(head=2 * 9 * 21)


def test_a_token_of_llama_3_1_8b_takes_six_operations_a_weight():
    dimensions = Dimensions.of(load_model_config(public_shape("meta-llama/Llama-3.1-8B")))
    weights = 32 * (4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336) + 4096 * 128256
    found = training_flops(dimensions, [1000], 1000)
    assert found.layers + found.head == 6 * weights * 1000
    assert found.attention == 6 * 1000**2 * 4096 * 32
    assert weights == 8_030_261_248 - 4096 * 128256 - 65 * 4096  # no embedding, no norms


def test_attention_is_of_each_sequence_and_not_of_their_sum():
    dimensions = Dimensions(layers=1, hidden=4, intermediate=4, heads=1, kv_heads=1, head_dim=4, vocab=5)
    apart, joined = forward_flops(dimensions, [3, 3], 0), forward_flops(dimensions, [6], 0)
    assert apart.layers == joined.layers
    assert joined.attention == 2 * apart.attention
