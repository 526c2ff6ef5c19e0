import pytest

from grpo.errors import ModelError
from grpo.models.locate import locate_model
from grpo.models.shipped import SHAPES


def test_a_folder_comes_before_a_shipped_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "tiny-digits"
    own.mkdir()
    (own / "config.json").write_text("{}")
    assert locate_model("tiny-digits").resolve() == own


def test_a_shipped_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert locate_model("tiny-digits") == SHAPES / "tiny-digits"


def test_for_random_weights_the_dimensions_of_a_public_model_will_do(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    name = "meta-llama/Llama-3.1-8B-Instruct"
    assert (locate_model(name, weights=False) / "config.json").is_file()
    with pytest.raises(ModelError, match="Store it on a machine with network"):
        locate_model(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny-digit", r"policy.model_name=tiny-digit: .* Did you mean the shipped model tiny-digits\?"),
        ("./missing/model", r"policy.model_name=./missing/model: there is no such folder"),
        ("someone/model", r"Store it on a machine with network: grpo fetch RECIPE policy.model_name=someone/model"),
    ],
)
def test_what_is_not_here_is_named(name, message, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=message):
        locate_model(name)


def test_a_folder_without_a_config_says_what_it_holds(tmp_path):
    (tmp_path / "weights.bin").write_text("")
    with pytest.raises(ModelError, match=r"policy.tokenizer.name=.* has no config.json \(it holds: weights.bin\)"):
        locate_model(str(tmp_path), key="policy.tokenizer.name")
