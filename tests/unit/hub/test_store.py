from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.hub.store import (
    Pin,
    commit_folder,
    read_pin,
    repository_folder,
    store_home,
    stored_dataset,
    stored_folder,
    stored_model,
    write_pin,
)

FIRST, SECOND = "a" * 40, "b" * 40


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    return tmp_path


def put(contents, commit):
    folder = commit_folder(contents, "org/m", commit)
    folder.mkdir(parents=True)
    return folder


def test_home(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("GRPO_HOME", "~/g")
    assert store_home() == Path.home() / "g"
    monkeypatch.delenv("GRPO_HOME")
    assert store_home() == Path("/x/grpo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store_home() == Path.home() / ".cache" / "grpo"


def test_nothing_stored():
    assert stored_model("org/m") is None
    assert stored_dataset("org/m", "main") is None


def test_revision_is_the_commit_of_its_pin():
    first, second = put("model", FIRST), put("model", SECOND)
    write_pin("model", Pin("org/m", revisions={"main": FIRST, "v2": SECOND}))
    assert stored_model("org/m") == stored_model("org/m", "main") == stored_model("org/m", FIRST) == first
    assert stored_model("org/m", "v2") == stored_model("org/m", SECOND) == second
    assert stored_model("org/m", "v3") is None
    assert stored_dataset("org/m") is None


def test_only_stored_revision_stands_for_none():
    folder = put("model", FIRST)
    write_pin("model", Pin("org/m", revisions={"v1": FIRST}))
    assert stored_model("org/m") == folder
    assert stored_model("org/m", "main") is None


def test_folder_that_is_not_complete_is_not_found():
    put("model", FIRST + ".partial")
    write_pin("model", Pin("org/m", revisions={"main": FIRST}))
    assert stored_model("org/m") is None


def test_tokenizer_alone_is_no_model_but_a_model_has_its_tokenizer():
    tokenizer = put("tokenizer", FIRST)
    write_pin("model", Pin("org/m", revisions={"main": FIRST}))
    assert stored_folder("model", "org/m") is None
    assert stored_folder("tokenizer", "org/m") == stored_model("org/m") == tokenizer
    model = put("model", FIRST)
    assert stored_folder("tokenizer", "org/m") == stored_model("org/m") == model


def test_pin_is_read_back(home):
    pin = Pin("org/m", "mit", gated=True, revisions={"main": FIRST})
    write_pin("dataset", pin)
    assert read_pin("dataset", "org/m") == pin
    assert [p.name for p in repository_folder("dataset", "org/m").iterdir()] == ["pin.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "m", "other": 1}', "{}"])
def test_broken_pin_is_named(text):
    write_pin("model", Pin("org/m"))
    path = repository_folder("model", "org/m") / "pin.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"pin.json: not a pin .*grpo fetch"):
        stored_model("org/m")


def test_names_do_not_leave_the_store(home):
    assert repository_folder("model", "../../x").parent == home / "models"
