"""The arithmetic of shards against DTensor itself: FSDP2 and tensor parallelism over a pretended process group."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from grpo.errors import ModelError
from grpo.models.loading import load_model_config
from grpo.models.public import public_shape
from grpo.planning.parallel import Parallel
from grpo.planning.parameters import (
    layer_elements,
    load_model_shapes,
    model_folder,
    model_of,
    outer_elements,
    sharded_elements,
    stage_elements,
    tensor_elements,
)

SIZES = {
    "vocab_size": 50, "hidden_size": 20, "intermediate_size": 36, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
UNEVEN = LlamaConfig(**SIZES, head_dim=6, tie_word_embeddings=False)  # 50 rows over 3 ranks
BIASED = Qwen2Config(**SIZES, tie_word_embeddings=False)
TIED = Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Llama-3.1-70B", 70_553_706_496),
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
        ("meta-llama/Llama-3.2-1B", 1_235_814_400),
        ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen2.5-32B", 32_763_876_352),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-32B", 32_762_123_264),
    ],
)
def test_published_numbers_of_parameters(name, parameters, monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    assert load_model_shapes(name).parameters == parameters


def test_llama_3_1_8b_by_hand():
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    shapes = model_of("8B", load_model_config(public_shape("meta-llama/Llama-3.1-8B")))
    assert layer_elements(shapes, 1) == layer == 218_112_000
    assert outer_elements(shapes, 1) == 2 * 4096 * 128256 + 4096
    # Eight tensor parallel ranks divide all but the norms.
    assert layer_elements(shapes, 8) == (layer - 2 * 4096) // 8 + 2 * 4096
    assert sharded_elements(shapes, 1, 8) == 8_030_261_248 // 8


def test_a_folder_of_the_users_own_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    UNEVEN.save_pretrained(tmp_path / "meta-llama" / "Llama-3.1-8B")
    assert load_model_shapes("meta-llama/Llama-3.1-8B").dimensions.hidden == 20


def test_an_unknown_model_lists_what_ships(monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=r"dimensions ship of Qwen/Qwen2\.5-1\.5B.*grpo fetch"):
        model_folder("some/model")


@pytest.fixture
def pretended_ranks():
    def start(ranks):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)

    yield start
    dist.destroy_process_group()


@pytest.mark.parametrize(("data", "tensor"), [(3, 2), (4, 1), (1, 2), (7, 2), (32, 2)])
@pytest.mark.parametrize("config", [UNEVEN, BIASED, TIED], ids=lambda config: config.model_type)
def test_the_first_rank_of_a_sharded_model_holds_as_many_elements(config, data, tensor, pretended_ranks):
    pretended_ranks(data * tensor)
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("dp", "tp"))
    assert held_by_the_first_rank(config, mesh) == sharded_elements(model_of("uneven", config), tensor, data)


def test_the_70b_layout_on_64_ranks(pretended_ranks):
    pretended_ranks(64)
    mesh = init_device_mesh("cpu", (8, 8), mesh_dim_names=("dp", "tp"))
    config = load_model_config(public_shape("meta-llama/Llama-3.1-70B"))
    held = held_by_the_first_rank(config, mesh)
    assert held == sharded_elements(model_of("70B", config), 8, 8) == 1_102_545_920


def held_by_the_first_rank(config, mesh):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    if mesh["tp"].size() > 1:
        parallelize_module(model, mesh["tp"], _plan(tied=config.tie_word_embeddings))
        if config.tie_word_embeddings:
            model.lm_head.weight = model.model.embed_tokens.weight
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return sum(each.to_local().numel() for each in model.parameters())


def _plan(*, tied):
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    plan = {f"model.layers.*.{name}": ColwiseParallel() for name in columns}
    plan |= {f"model.layers.*.{name}": RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
    plan["model.embed_tokens"] = RowwiseParallel()
    return plan if tied else plan | {"lm_head": ColwiseParallel()}


@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_stages_hold_every_parameter_once(pipeline):
    model = model_of("untied", UNEVEN)
    parallel = Parallel("megatron", tensor=1, pipeline=pipeline, data=1, gpus_per_node=8)
    stages = [stage_elements(model, parallel, stage) for stage in range(pipeline)]
    assert sum(stages) == model.parameters
    per_stage, embedding = 4 // pipeline * layer_elements(model, 1), 50 * 20
    assert stages[0] - per_stage >= embedding
    assert stages[-1] - per_stage >= embedding + 20


def test_a_tied_embedding_is_on_the_first_and_on_the_last_stage():
    model = model_of("tied", TIED)
    parallel = Parallel("megatron", tensor=2, pipeline=2, data=1, gpus_per_node=8)
    assert [stage_elements(model, parallel, stage) - 2 * layer_elements(model, 2) for stage in (0, 1)] == [500, 520]


MODELS = [model_of(config.model_type, config) for config in (UNEVEN, BIASED, TIED)]


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from([1, 2, 4, 8, 64]), st.sampled_from([1, 2]))
def test_more_ranks_never_hold_more(model, data, tensor):
    held = sharded_elements(model, tensor, data)
    assert sharded_elements(model, tensor, 2 * data) <= held
    assert sharded_elements(model, 2 * tensor, data) <= held
    assert held * data >= tensor_elements(model, tensor)
    assert tensor_elements(model, tensor) * tensor >= model.parameters
