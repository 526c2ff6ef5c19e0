"""The count against what autograd saves in the real layers, at two depths, so that what is outside them cancels."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from grpo.models.dimensions import Dimensions
from grpo.planning.activations import (
    head_gradient_bytes,
    layer_bytes_per_token,
    logit_chunk_bytes,
    scoring_activations,
    training_activations,
)
from grpo.planning.parallel import Parallel
from grpo.workers.policy.layers import use_own_layers

ONE = Parallel("dtensor", tensor=1, pipeline=1, data=1, gpus_per_node=1)
SIZES = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 52, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
WIDTH = 24


def config_of(kind, layers):
    return kind(**SIZES, num_hidden_layers=layers, **({} if kind is Qwen2Config else {"head_dim": 8}))


def saved_bytes(config, dtype):
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    use_own_layers(model)
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    alive, sizes = [], {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            alive.append(tensor)
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model.get_decoder()(
            input_ids=torch.zeros(1, WIDTH, dtype=torch.int64), position_ids=torch.arange(WIDTH)[None],
            use_cache=False, packed=None,
        )  # fmt: skip
    assert output.last_hidden_state.requires_grad
    return sum(sizes.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_a_layer_keeps_what_autograd_saves(kind, dtype):
    deeper = saved_bytes(config_of(kind, 3), dtype) - saved_bytes(config_of(kind, 1), dtype)
    expected = layer_bytes_per_token(Dimensions.of(config_of(kind, 1)), ONE, dtype.itemsize)
    assert deeper == 2 * WIDTH * expected


LLAMA_8B = Dimensions(layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8, head_dim=128, vocab=128256)


def test_a_token_of_llama_3_1_8b_by_hand():
    norms = 2 * (4096 * (4 + 2 + 2) + 4)
    attention = 2 * (4096 + 1024 + 1024 + 4096) + 4 * 32
    assert layer_bytes_per_token(LLAMA_8B, ONE, 2) == norms + attention + 4 * 2 * 14336
    packed = layer_bytes_per_token(LLAMA_8B, ONE, 2, packed=True)
    assert packed - layer_bytes_per_token(LLAMA_8B, ONE, 2) == 2 * 2 * (4096 - 1024)  # keys and values repeated


def test_sequence_parallel_divides_the_norms_but_not_gathered_inputs():
    split = Parallel("dtensor", tensor=4, pipeline=1, data=1, gpus_per_node=4)
    sequence = Parallel("dtensor", tensor=4, pipeline=1, data=1, gpus_per_node=4, sequence_parallel=True)
    saved = layer_bytes_per_token(LLAMA_8B, split, 2) - layer_bytes_per_token(LLAMA_8B, sequence, 2)
    assert saved == 2 * (4096 * 6 + 4) * 3 / 4


def test_megatron_keeps_two_tensors_a_norm():
    megatron = Parallel("megatron", tensor=1, pipeline=1, data=1, gpus_per_node=1)
    difference = layer_bytes_per_token(LLAMA_8B, ONE, 2) - layer_bytes_per_token(LLAMA_8B, megatron, 2)
    assert difference == 2 * 4096 * (8 - 4)


def test_checkpointing_keeps_inputs_and_one_layer():
    again = Parallel("dtensor", tensor=1, pipeline=1, data=1, gpus_per_node=1, recompute=True)
    with_it = training_activations(LLAMA_8B, again, 100, layers=32, in_flight=1, compute_bytes=2, packed=False)
    without = training_activations(LLAMA_8B, ONE, 100, layers=32, in_flight=1, compute_bytes=2, packed=False)
    outer = (4 + 2 * 2) * 4096
    assert with_it.kept == 100 * (2 * 4096 * 32 + outer)
    assert without.kept == 100 * (32 * layer_bytes_per_token(LLAMA_8B, ONE, 2) + outer)
    assert with_it.transient - without.transient == 100 * layer_bytes_per_token(LLAMA_8B, ONE, 2)


def test_micro_batches_in_flight_are_all_kept():
    one, four = (
        training_activations(LLAMA_8B, ONE, 100, layers=8, in_flight=count, compute_bytes=2, packed=True)
        for count in (1, 4)
    )
    assert four.kept == 4 * one.kept
    assert four.transient == one.transient


def test_logits_are_divided_over_the_vocabulary():
    four = Parallel("dtensor", tensor=4, pipeline=1, data=1, gpus_per_node=4)
    assert logit_chunk_bytes(LLAMA_8B, four, 1000, entropy=False) == 1000 * 128256 / 4 * 8
    assert logit_chunk_bytes(LLAMA_8B, four, 1000, entropy=True) == 1000 * 128256 / 4 * 12
    assert head_gradient_bytes(LLAMA_8B, four) == 4 * 4096 * 128256 / 4
    assert scoring_activations(LLAMA_8B, ONE, 10, 2) == 10 * (3 * 2 * 14336 + 3 * 2 * 4096)
