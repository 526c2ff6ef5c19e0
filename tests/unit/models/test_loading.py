import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo.errors import ModelError
from grpo.models.loading import load_model, load_model_config, load_tokenizer
from grpo.models.shipped import materialise, shipped_folder


@pytest.fixture
def folder(tmp_path):
    return materialise("tiny-digits", tmp_path / "model")


def test_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    load_model(shipped_folder("tiny-digits"), dtype=torch.float32, random_weights=True, seed=1)
    assert torch.equal(torch.rand(3), wanted)


def test_the_dtype_is_that_asked_for(folder):
    assert {each.dtype for each in load_model(folder, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}


def test_rotary_frequencies_are_not_rounded_with_the_parameters(folder):
    rounded = load_model(shipped_folder("tiny-digits"), dtype=torch.bfloat16, random_weights=True)
    exact = load_model(shipped_folder("tiny-digits"), dtype=torch.float32, random_weights=True)
    read = load_model(folder, dtype=torch.bfloat16)
    assert {each.dtype for each in rounded.parameters()} == {torch.bfloat16}
    for name, buffer in exact.named_buffers():
        assert torch.equal(dict(rounded.named_buffers())[name], buffer)
        assert torch.equal(dict(read.named_buffers())[name], buffer)


@pytest.mark.parametrize("content", ["not json", '{"model_type": "nonsense"}', "{}"])
def test_a_config_that_is_none(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config.json: not a model configuration that can be read"):
        load_model_config(folder)


def test_a_model_that_writes_no_text(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "clip_vision_model"}))
    with pytest.raises(ModelError, match="'clip_vision_model' is not a causal language model"):
        load_model_config(folder)


def test_a_folder_without_weights_names_the_key():
    with pytest.raises(ModelError, match=r"no \*.safetensors weights here; set policy.random_weights=true"):
        load_model(shipped_folder("tiny-digits"), dtype=torch.float32)


def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no \*.safetensors weights here"):
        load_model(folder, dtype=torch.float32)


def test_truncated_weights(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="the weights cannot be read"):
        load_model(folder, dtype=torch.float32)


def test_weights_that_lack_a_tensor_are_not_filled_in_silently(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights are missing .* model.layers.1.mlp.up_proj.weight"):
        load_model(folder, dtype=torch.float32)


def test_weights_of_another_shape(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(ModelError, match="the weights cannot be read"):
        load_model(folder, dtype=torch.float32)


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows():
    with pytest.raises(ModelError, match=r"14 tokens but the model's vocab_size is 13: policy.tokenizer.name and"):
        load_tokenizer(shipped_folder("tiny-digits"), vocabulary=13)


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(ModelError, match="no tokenizer that can be read"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_an_end_of_sequence(folder):
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="no end-of-sequence token"):
        load_tokenizer(folder)


def test_a_tokenizer_without_padding_pads_with_the_end_of_sequence(folder):
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
