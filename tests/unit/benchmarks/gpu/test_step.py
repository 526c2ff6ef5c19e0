import json

import pytest

from benchmarks.gpu.shapes import SHAPES_BY_NAME
from benchmarks.gpu.step import model_folder, shares
from grpo.models.loading import load_model_config, load_tokenizer


def step(total, **phases):
    return {"timing/total": total, **{f"timing/{name}": value for name, value in phases.items()}}


def test_what_is_around_the_work_is_a_share_of_each_step():
    steps = [step(9.0, data=9.0)] * 2 + [
        step(10.0, generation=5.0, policy_training=4.0, data=0.1, other=0.1),
        step(20.0, generation=15.0, policy_training=4.0, rewards=0.5, advantages=0.5),
    ]
    found = shares(steps)
    assert found["steps"] == 2  # two are warm-up
    assert found["around"] == {"median": pytest.approx(0.035), "low": pytest.approx(0.02), "high": pytest.approx(0.05)}
    assert found["seconds"]["generation"] == 10.0


def test_warm_up_alone_is_no_measurement():
    with pytest.raises(RuntimeError, match="none is left"):
        shares([step(1.0)] * 2)


def test_the_folder_holds_dimensions_and_a_tokenizer(tmp_path):
    shape = SHAPES_BY_NAME["1b"].with_layers(3)
    folder = model_folder(shape, tmp_path / "model")
    assert load_model_config(folder).num_hidden_layers == 3
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 128256
    tokenizer = load_tokenizer(folder, vocabulary=128256)
    assert tokenizer.decode(tokenizer.encode("two words", add_special_tokens=False)) == "two words"
