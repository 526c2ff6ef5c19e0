import json

import pytest

from grpo.config import load_config
from grpo.errors import ModelError
from grpo.models.locate import locate_model
from grpo.models.public import PUBLIC_SHAPES, public_names, public_shape
from grpo.models.shipped import shipped_names
from grpo.recipes import shipped_recipes


def test_every_name_has_a_config_and_every_config_a_name():
    folders = {public_shape(name) for name in public_names()}
    assert folders == set(PUBLIC_SHAPES.iterdir())
    for folder in folders:
        assert [path.name for path in folder.iterdir()] == ["config.json"]
        assert json.loads((folder / "config.json").read_text())["model_type"] in {"llama", "qwen2", "qwen3"}


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B"])
def test_a_public_shape_is_not_a_model_that_loads(name, monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    assert public_shape(name) is not None
    assert not set(public_names()) & set(shipped_names())
    with pytest.raises(ModelError, match="grpo fetch"):
        locate_model(name)


def test_another_name_has_none():
    assert public_shape("meta-llama/Llama-2-7b") is None
    assert public_shape("../shapes/tiny-llama") is None


def test_the_models_of_the_shipped_recipes_can_be_planned_without_a_hub():
    models = {load_config(recipe).config.policy.model_name for recipe in shipped_recipes()}
    assert models <= {*public_names(), *shipped_names()}
