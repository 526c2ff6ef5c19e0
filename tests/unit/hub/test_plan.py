import pytest

from grpo.config.schema import Config
from grpo.errors import DataError, ModelError
from grpo.hub.plan import Item, missing_items, plan_fetch, require_stored
from grpo.hub.store import Pin, commit_folder, write_pin

COMMIT = "c" * 40


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def config(*, policy=None, train=None, validation=None):
    return Config.model_validate(
        {
            "policy": {"model_name": "org/m", **(policy or {})},
            "data": {"train": train or {"kind": "hub", "dataset_name": "org/d"}, "validation": validation},
            "env": {},
        }
    )


def test_model_and_dataset():
    assert plan_fetch(config(policy={"model_revision": "v1"}, validation={"kind": "hub", "dataset_name": "org/e"})) == [
        Item("model", "org/m", "v1", "policy.model_name"),
        Item("dataset", "org/d", None, "data.train.dataset_name"),
        Item("dataset", "org/e", None, "data.validation.dataset_name"),
    ]


def test_each_repository_once():
    assert plan_fetch(
        config(
            policy={"tokenizer": {"name": "org/m"}},
            validation={"kind": "hub", "dataset_name": "org/d", "split": "test"},
        )
    ) == [Item("model", "org/m", None, "policy.model_name"), Item("dataset", "org/d", None, "data.train.dataset_name")]


def test_another_tokenizer_and_random_weights_need_no_weights():
    items = plan_fetch(config(policy={"random_weights": True, "tokenizer": {"name": "org/t"}}))
    assert [(item.contents, item.name) for item in items[:2]] == [("tokenizer", "org/m"), ("tokenizer", "org/t")]


def test_local_folders_and_shipped_models_need_nothing(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "d").mkdir()
    local = {"kind": "hub", "dataset_name": "./d"}
    assert plan_fetch(config(policy={"model_name": str(tmp_path / "m")}, train=local)) == []
    assert (
        plan_fetch(config(policy={"model_name": "tiny-digits"}, train={"kind": "file", "data_path": "x.jsonl"})) == []
    )


@pytest.mark.parametrize("name", ["./absent", "/absent/m", "a/b/c", "~/absent", "../m", "org/", ""])
def test_path_that_does_not_exist_is_not_asked_of_the_hub(name):
    with pytest.raises(ModelError, match=r"^policy.model_name=.*no such folder"):
        plan_fetch(config(policy={"model_name": name}))
    with pytest.raises(DataError, match=r"^data.train.dataset_name=.*no such folder"):
        plan_fetch(config(policy={"model_name": "tiny-digits"}, train={"kind": "hub", "dataset_name": name}))


def test_missing_names_the_command():
    with pytest.raises(
        ModelError, match=r"policy.model_name=org/m; data.train.dataset_name=org/d.*run: grpo fetch math 'a=b c'$"
    ):
        require_stored(config(), "math", ["a=b c"])


def test_what_is_stored_is_not_missing():
    commit_folder("model", "org/m", COMMIT).mkdir(parents=True)
    write_pin("model", Pin("org/m", revisions={"main": COMMIT}))
    assert [item.name for item in missing_items(config())] == ["org/d"]
    with pytest.raises(DataError, match=r"data.train.dataset_name=org/d\. Runs use no network.*grpo fetch math$"):
        require_stored(config(), "math")
    commit_folder("dataset", "org/d", COMMIT).mkdir(parents=True)
    write_pin("dataset", Pin("org/d", revisions={"main": COMMIT}))
    require_stored(config(), "math")
    with pytest.raises(ModelError, match="org/m at revision v9"):
        require_stored(config(policy={"model_revision": "v9"}), "math")


def test_tokenizer_alone_does_not_stand_for_a_model():
    commit_folder("tokenizer", "org/m", COMMIT).mkdir(parents=True)
    write_pin("model", Pin("org/m", revisions={"main": COMMIT}))
    assert "org/m" in [item.name for item in missing_items(config())]
    assert "org/m" not in [item.name for item in missing_items(config(policy={"random_weights": True}))]


def test_dimensions_that_ship_do_where_neither_weights_nor_tokenizer_are_wanted():
    def missing(**policy):
        found = missing_items(config(policy={"model_name": "meta-llama/Llama-3.1-8B-Instruct", **policy}))
        return [item.key for item in found if item.key.startswith("policy.")]

    other = {"name": "tiny-llama"}
    assert missing(random_weights=True, tokenizer=other) == []
    assert missing(random_weights=True) == ["policy.model_name"]  # for its tokenizer
    assert missing(tokenizer=other) == ["policy.model_name"]
