"""The count against what autograd saves in the real layers, at two depths, so that what is outside them cancels."""

import sys
import types

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


class Norm(torch.autograd.Function):
    """Keeps what torch's kernels do: the input and the inverse of the root."""

    @staticmethod
    def forward(ctx, hidden, weight, _epsilon):
        ctx.save_for_backward(hidden, weight, torch.zeros(hidden.shape[:-1]))
        return torch.zeros_like(hidden)

    @staticmethod
    def backward(ctx, *_grads):
        raise NotImplementedError


@pytest.fixture
def kernels(monkeypatch):
    """The operations as on a GPU, by kernels that compute nothing: what they keep for the backward pass is the same."""

    def empty(*shape, dtype):
        return torch.zeros(shape, dtype=dtype)

    launched = {
        "rotary": {"turn": lambda query, key, *_, back: (torch.zeros_like(query), torch.zeros_like(key))},
        "swiglu": {"swiglu_forward": lambda gate, _up: torch.zeros_like(gate)},
    }
    monkeypatch.setattr("grpo.workers.policy.layers.rms_norm", Norm.apply)
    for name, functions in launched.items():
        monkeypatch.setattr(f"grpo.kernels.{name}.has_kernel", lambda _tensor: True)
        monkeypatch.setitem(sys.modules, f"grpo.kernels.gpu.{name}", types.SimpleNamespace(**functions))


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
@pytest.mark.usefixtures("kernels")
def test_a_layer_keeps_what_autograd_saves(kind, dtype):
    deeper = saved_bytes(config_of(kind, 3), dtype) - saved_bytes(config_of(kind, 1), dtype)
    expected = layer_bytes_per_token(Dimensions.of(config_of(kind, 1)), ONE, dtype.itemsize)
    assert deeper == 2 * WIDTH * expected


LLAMA_8B = Dimensions(layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8, head_dim=128, vocab=128256)


def test_a_token_of_llama_3_1_8b_by_hand():
    norms = 2 * (4096 * (2 + 2) + 4)
    attention = 2 * (4096 + 1024 + 1024 + 4096) + 4 * 32
    assert layer_bytes_per_token(LLAMA_8B, ONE, 2) == norms + attention + 3 * 2 * 14336


def test_sequence_parallel_divides_the_norms_but_not_gathered_inputs():
    split = Parallel("dtensor", tensor=4, pipeline=1, data=1, gpus_per_node=4)
    sequence = Parallel("dtensor", tensor=4, pipeline=1, data=1, gpus_per_node=4, sequence_parallel=True)
    saved = layer_bytes_per_token(LLAMA_8B, split, 2) - layer_bytes_per_token(LLAMA_8B, sequence, 2)
    assert saved == 2 * (4096 * 2 + 4) * 3 / 4


def test_megatron_gathers_inputs_again():
    megatron, pytorch = (
        Parallel(backend, tensor=4, pipeline=1, data=1, gpus_per_node=4, sequence_parallel=True)
        for backend in ("megatron", "dtensor")
    )
    difference = layer_bytes_per_token(LLAMA_8B, pytorch, 2) - layer_bytes_per_token(LLAMA_8B, megatron, 2)
    assert difference == 2 * 4096 * 2 * 3 / 4


def test_checkpointing_keeps_inputs_and_one_layer():
    again = Parallel("dtensor", tensor=1, pipeline=1, data=1, gpus_per_node=1, recompute=True)
    with_it = training_activations(LLAMA_8B, again, 100, layers=32, in_flight=1, compute_bytes=2)
    without = training_activations(LLAMA_8B, ONE, 100, layers=32, in_flight=1, compute_bytes=2)
    outer = 2 * 2 * 4096
    assert with_it.kept == 100 * (2 * 4096 * 32 + outer)
    assert without.kept == 100 * (32 * layer_bytes_per_token(LLAMA_8B, ONE, 2) + outer)
    assert with_it.transient - without.transient == 100 * layer_bytes_per_token(LLAMA_8B, ONE, 2)


def test_micro_batches_in_flight_are_all_kept():
    one, four = (
        training_activations(LLAMA_8B, ONE, 100, layers=8, in_flight=count, compute_bytes=2) for count in (1, 4)
    )
    assert four.kept == 4 * one.kept
    assert four.transient == one.transient


def test_logits_are_divided_over_the_vocabulary():
    four = Parallel("dtensor", tensor=4, pipeline=1, data=1, gpus_per_node=4)
    assert logit_chunk_bytes(LLAMA_8B, four, 1000, 0) == 1000 * 128256 / 4 * 4
    assert logit_chunk_bytes(LLAMA_8B, four, 1000, 2) == 1000 * 128256 / 4 * 6
    assert head_gradient_bytes(LLAMA_8B, four) == 4 * 4096 * 128256 / 4
    assert scoring_activations(LLAMA_8B, ONE, 10, 2) == 10 * (3 * 2 * 14336 + 3 * 2 * 4096)
