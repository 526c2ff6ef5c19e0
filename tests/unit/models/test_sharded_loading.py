import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo.errors import ModelError
from grpo.models.loading import load_model
from grpo.models.sharded_loading import random_weights, restore_buffers, shape_of_model, stored_weights
from grpo.models.shipped import shipped_folder, shipped_names
from tests.support.policy import MODELS, tiny_model

EVERYTHING = (slice(None), slice(None))


def whole(read, shape):
    return read(EVERYTHING[: len(shape)])


@pytest.fixture(params=["one file", "several files"])
def folder(request, tmp_path):
    size = "1KB" if request.param == "several files" else "5GB"
    tiny_model("qwen3").save_pretrained(tmp_path, max_shard_size=size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (request.param == "several files")
    return tmp_path


def shapes_of(folder):
    return {name: each.shape for name, each in shape_of_model(folder).named_parameters()}


def test_parts_are_those_of_the_stored_weights(folder):
    expected = dict(tiny_model("qwen3").named_parameters())
    seen = set()
    for name, read in stored_weights(folder, shapes_of(folder)):
        part = tuple(slice(size // 3, size - 1) for size in expected[name].shape)
        assert torch.equal(read(part), expected[name][part])
        assert torch.equal(whole(read, expected[name].shape), expected[name])
        seen.add(name)
    assert seen == expected.keys()


def test_what_is_missing_or_of_another_shape_is_named(folder):
    shapes = shapes_of(folder)
    with pytest.raises(ModelError, match=r"1 weights are missing from the safetensors, the first is model\.extra"):
        list(stored_weights(folder, {**shapes, "model.extra": torch.Size([2])}))
    with pytest.raises(ModelError, match=r"lm_head\.weight has shape \[37, 24\], but config\.json asks for \[37, 25\]"):
        list(stored_weights(folder, {**shapes, "lm_head.weight": torch.Size([37, 25])}))


def test_no_weights_and_broken_files_are_named(tmp_path):
    with pytest.raises(ModelError, match="random_weights=true"):
        list(stored_weights(tmp_path, {}))
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(ModelError, match="cannot be read"):
        list(stored_weights(tmp_path, {"a": torch.Size([1])}))


def test_files_that_the_index_does_not_name_are_not_read(tmp_path):
    tiny_model().save_pretrained(tmp_path, max_shard_size="1KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    stale = {name: torch.zeros_like(each) for file in set(index["weight_map"].values())
             for name, each in load_file(tmp_path / file).items()}  # fmt: skip
    save_file(stale, tmp_path / "z-stale.safetensors")
    for name, read in stored_weights(tmp_path, shapes_of(tmp_path)):
        assert whole(read, shapes_of(tmp_path)[name]).abs().sum() > 0


def test_the_shape_of_a_model_holds_nothing_and_its_buffers_can_be_restored(folder):
    model = shape_of_model(folder)
    assert all(each.is_meta for each in [*model.parameters(), *model.buffers()])
    model.to_empty(device="cpu")
    restore_buffers(model, torch.device("cpu"))
    expected = dict(tiny_model("qwen3").named_buffers())
    assert dict(model.named_buffers()).keys() == expected.keys()
    for name, each in model.named_buffers():
        assert torch.equal(each, expected[name])


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("seed", [0, 5])
def test_random_weights_are_those_of_one_process(name, seed):
    state = torch.get_rng_state()
    expected = dict(
        load_model(shipped_folder(name), dtype=torch.float32, random_weights=True, seed=seed).named_parameters()
    )
    ours = dict(random_weights(shipped_folder(name), seed))
    assert ours.keys() == expected.keys()
    for key, each in expected.items():
        assert torch.equal(whole(ours[key], each.shape), each), key
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("tied", [True, False])
def test_random_weights_of_every_architecture(kind, tied, tmp_path):
    tiny_model(kind, tied=tied).config.save_pretrained(tmp_path)  # a padding row among the embeddings
    expected = dict(load_model(tmp_path, dtype=torch.float32, random_weights=True, seed=3).named_parameters())
    ours = dict(random_weights(tmp_path, 3))
    assert ours.keys() == expected.keys()
    for key, each in expected.items():
        assert torch.equal(whole(ours[key], each.shape), each), key
