import pytest
import torch

from grpo.models.megatron.names import embedding_weight, final_norm, layer_weights, output_weight, weight_shape
from grpo.models.megatron.shape import ModelShape
from tests.support.policy import tiny_model

KINDS = ["llama", "qwen2", "qwen3"]


def weights_of(shape, *, fused_norms=False):
    """Every parameter of the whole model, by a name of its own."""
    layers = {
        f"{layer}.{name}": weight
        for layer in range(shape.num_layers)
        for name, weight in layer_weights(shape, layer, fused_norms=fused_norms).items()
    }
    head = {} if shape.tied else {"output": output_weight(shape)}
    return {"embedding": embedding_weight(shape), **layers, "norm": final_norm(), **head}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_of_all_ranks_make_the_whole_bit_for_bit(kind, tied, size):
    model = tiny_model(kind, tied=tied, num_attention_heads=8, num_key_value_heads=4, vocab_size=37)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    given = dict(model.named_parameters())
    made = {}
    for weight in weights_of(ModelShape.of(model.config)).values():
        parts = [weight.local(model.state_dict(), rank, size) for rank in range(size)]
        assert len({part.shape for part in parts}) == 1
        whole = dict(weight.whole(parts))
        assert tuple(whole) == weight.names
        assert not whole.keys() & made.keys()
        made |= whole
    assert made.keys() == given.keys()
    assert all(torch.equal(made[name], given[name]) for name in given)


def test_queries_keys_and_values_are_fused_group_by_group():
    # 4 heads in 2 groups of head size 1: row r of each projection holds its own number.
    model = tiny_model("qwen2", hidden_size=4, num_attention_heads=4, num_key_value_heads=2, head_dim=1)
    shape = ModelShape.of(model.config)
    source = {
        f"model.layers.0.self_attn.{kind}_proj.weight": start + torch.arange(rows)[:, None].float()
        for kind, start, rows in (("q", 0, 4), ("k", 10, 2), ("v", 20, 2))
    }
    weight = layer_weights(shape, 0, fused_norms=False)["self_attention.linear_qkv.weight"]
    assert weight.local(source, 0, 1)[:, 0].tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    assert weight.local(source, 1, 2)[:, 0].tolist() == [2, 3, 11, 21]


def test_each_rank_has_its_gate_above_its_up_projection():
    shape = ModelShape.of(tiny_model(intermediate_size=4).config)
    source = {
        "model.layers.1.mlp.gate_proj.weight": torch.arange(4.0)[:, None],
        "model.layers.1.mlp.up_proj.weight": 10 + torch.arange(4.0)[:, None],
    }
    weight = layer_weights(shape, 1, fused_norms=False)["mlp.linear_fc1.weight"]
    assert weight.local(source, 1, 2)[:, 0].tolist() == [2, 3, 12, 13]


def test_a_vocabulary_that_does_not_divide_is_padded_with_zeros_and_unpadded():
    weight = embedding_weight(ModelShape.of(tiny_model(vocab_size=37).config))
    source = {"model.embed_tokens.weight": torch.arange(1.0, 38)[:, None]}
    parts = [weight.local(source, rank, 4) for rank in range(4)]
    assert [len(part) for part in parts] == [10] * 4
    assert parts[3][:, 0].tolist() == [31, 32, 33, 34, 35, 36, 37, 0, 0, 0]
    assert torch.equal(dict(weight.whole(parts))["model.embed_tokens.weight"], source["model.embed_tokens.weight"])


def test_only_the_families_that_have_them_have_biases_and_query_norms():
    names = {kind: set(layer_weights(ModelShape.of(tiny_model(kind).config), 0, fused_norms=False)) for kind in KINDS}
    assert names["qwen2"] - names["llama"] == {"self_attention.linear_qkv.bias"}
    assert names["qwen3"] - names["llama"] == {"self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"}


def test_layers_of_transformer_engine_hold_their_norms_in_the_projections():
    shape = ModelShape.of(tiny_model().config)
    own, engine = (layer_weights(shape, 0, fused_norms=fused) for fused in (False, True))
    assert own["input_layernorm.weight"] == engine["self_attention.linear_qkv.layer_norm_weight"]
    assert own["pre_mlp_layernorm.weight"] == engine["mlp.linear_fc1.layer_norm_weight"]


def test_a_tied_head_is_the_embedding():
    assert output_weight(ModelShape.of(tiny_model(tied=True).config)).names == ("model.embed_tokens.weight",)
    assert output_weight(ModelShape.of(tiny_model(tied=False).config)).names == ("lm_head.weight",)


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_those_of_transformers(kind):
    model = tiny_model(kind)
    shape = ModelShape.of(model.config)
    given = {name: tuple(each.shape) for name, each in model.named_parameters()}
    assert {name: weight_shape(shape, name) for name in given} == given
