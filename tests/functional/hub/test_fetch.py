import json

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars

from grpo.hub import fetch as fetch_module
from grpo.hub.fetch import FetchError, fetch
from grpo.hub.plan import Item
from grpo.hub.store import read_pin, repository_folder, store_home, stored_dataset, stored_folder, stored_model
from tests.support.fake_hub import Repository, serve

OLD, NEW = "1" * 40, "2" * 40
WEIGHTS = bytes(range(256)) * 400
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"a": 1}',
    "model.safetensors": WEIGHTS,
    "README.md": b"hello",
    "pytorch_model.bin": b"pickle",
    "modeling.py": b"import os",
    "original/consolidated.00.pth": b"pickle",
}
KEPT = {"config.json", "tokenizer.json", "model.safetensors", "README.md"}
MODEL = Item("model", "org/m", None, "policy.model_name")
TOKENIZER = Item("tokenizer", "org/m", None, "policy.tokenizer.name")
DATASET = Item("dataset", "org/d", "v1", "data.train.dataset_name")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    disable_progress_bars()
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    with serve() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.repositories["models", "org/m"] = Repository(
            {OLD: {**FILES, "config.json": b'{"old": 1}'}, NEW: dict(FILES)},
            {"main": NEW, "v1": OLD},
            licence="llama3.1",
        )
        hub.repositories["datasets", "org/d"] = Repository(
            {OLD: {"data/train.jsonl": b'{"prompt": "a", "answer": 1}\n', "build.py": b"1"}}, {"main": OLD, "v1": OLD}
        )
        yield hub


def run(*items, **options):
    lines = []
    folders = fetch(items, lines.append, **options)
    return folders, "\n".join(lines)


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refusal(*items):
    lines = []
    with pytest.raises(FetchError) as caught:
        fetch(items, lines.append)
    return "\n".join([*lines, str(caught.value)])


def test_model_is_stored_at_its_commit_without_pickles_or_code(hub):
    (folder,), _ = run(MODEL)
    assert folder == stored_model("org/m") == stored_model("org/m", "main") == stored_model("org/m", NEW)
    assert folder.name == NEW
    assert content(folder) == {name: FILES[name] for name in KEPT}
    assert {r.path.rpartition("/")[2] for r in hub.downloads()} == KEPT


def test_lines_tell_licence_gate_size_and_destination(hub):
    _, text = run(MODEL, DATASET)
    assert f"org/m (policy.model_name) at commit {NEW}" in text
    assert "licence llama3.1; not gated" in text
    assert f"{hub.endpoint}/org/m" in text
    assert f"4 files, 102.4 kB -> {store_home()}/models/org--m/{NEW}" in text
    assert f"licence apache-2.0; not gated; {hub.endpoint}/datasets/org/d" in text


def test_tag_is_pinned_and_dataset_is_data_alone(hub):
    (model, dataset), _ = run(Item("model", "org/m", "v1", "policy.model_name"), DATASET)
    assert content(model)["config.json"] == b'{"old": 1}'
    assert stored_model("org/m", "v1") == model
    assert stored_dataset("org/d", "v1") == dataset
    assert set(content(dataset)) == {"data/train.jsonl"}
    assert read_pin("model", "org/m").revisions == {"v1": OLD}


def test_second_fetch_downloads_nothing_and_keeps_the_commit(hub):
    run(MODEL)
    hub.requests.clear()
    hub.repositories["models", "org/m"].revisions["main"] = OLD
    (folder,), text = run(MODEL)
    assert (folder.name, hub.requests) == (NEW, [])
    assert "stored already" in text
    (folder,), _ = run(MODEL, update=True)
    assert folder.name == OLD
    assert read_pin("model", "org/m").revisions == {"main": OLD}
    assert stored_model("org/m", NEW) is None


def test_tokenizer_first_then_the_model_at_the_same_commit(hub):
    (tokenizer,), _ = run(TOKENIZER)
    assert set(content(tokenizer)) == KEPT - {"model.safetensors"}
    hub.repositories["models", "org/m"].revisions["main"] = OLD
    (model,), _ = run(MODEL)
    assert model.name == NEW
    assert "model.safetensors" in content(model)


@pytest.mark.parametrize("has_token", [False, True])
def test_gated_repository_says_where_access_is_asked_for(hub, monkeypatch, has_token):
    hub.repositories["models", "org/m"].gated = True
    if has_token:
        monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    text = refusal(MODEL)
    assert (
        f"policy.model_name=org/m: {'your account has no access' if has_token else 'access is granted by its owner'}"
        in text
    )
    assert f"ask for it at {hub.endpoint}/org/m" in text
    assert hub.downloads() == []


def test_token_opens_the_gate_and_is_neither_shown_nor_stored(hub, monkeypatch):
    hub.repositories["models", "org/m"].gated = True
    monkeypatch.setenv("HF_TOKEN", hub.token)
    (folder,), text = run(MODEL)
    assert any(r.authorization == f"Bearer {hub.token}" for r in hub.downloads())
    assert f"gated, access granted; its terms: {hub.endpoint}/org/m" in text
    assert read_pin("model", "org/m").gated
    assert hub.token not in text
    assert all(hub.token.encode() not in data for data in content(store_home()).values())
    assert set(content(folder)) == KEPT


def test_cut_download_is_no_model_and_complete_files_are_not_fetched_again(hub):
    hub.cut["model.safetensors"] = 50_000
    assert "the hub answered 403" in refusal(MODEL)
    assert [r.path.rpartition("/")[2] for r in hub.downloads()][-2:] == ["model.safetensors"] * 2  # tried again at once
    assert stored_folder("model", "org/m") is None
    hub.cut.clear()
    hub.requests.clear()
    (folder,), _ = run(MODEL)
    assert content(folder) == {name: FILES[name] for name in KEPT}
    assert {r.path.rpartition("/")[2] for r in hub.downloads()} == {"model.safetensors", "tokenizer.json"}
    assert not any("partial" in p.name for p in repository_folder("model", "org/m").iterdir())


def test_file_of_another_size_than_listed_is_not_stored(hub):
    hub.listed["model.safetensors"] = len(WEIGHTS) + 1
    assert f"model.safetensors has {len(WEIGHTS)} bytes and not {len(WEIGHTS) + 1}" in refusal(MODEL)
    assert stored_folder("model", "org/m") is None


def test_gate_is_tried_before_anything_else_is_downloaded(hub):
    hub.repositories["models", "org/m"].gated = True
    refusal(DATASET, MODEL)
    assert hub.downloads() == []


def test_unknown_repository_and_revision(hub):
    text = refusal(Item("model", "org/absent", None, "policy.model_name"))
    assert (
        f"policy.model_name=org/absent: there is no such repository at {hub.endpoint}/org/absent, or it is private"
        in text
    )
    text = refusal(Item("model", "org/m", "v7", "policy.model_name"))
    assert f"there is no revision 'v7' at {hub.endpoint}/org/m" in text


def test_repository_without_safetensors(hub):
    del hub.repositories["models", "org/m"].commits[NEW]["model.safetensors"]
    assert "there are no safetensors" in refusal(MODEL)


def test_no_network(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert (
        "the hub cannot be reached (ConnectError, http://127.0.0.1:9/org/m); run this on a machine with network"
        in refusal(MODEL)
    )


def test_offline_environment(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "unset HF_HUB_OFFLINE" in refusal(MODEL)


def test_no_space_is_found_before_the_first_byte(hub, monkeypatch):
    monkeypatch.setattr(fetch_module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10_000})())
    text = refusal(MODEL)
    assert "102.4 kB are to be stored in" in text
    assert "10.0 kB free; make room, or set GRPO_HOME" in text
    assert hub.downloads() == []


def test_folder_that_cannot_be_written(hub, tmp_path):
    (tmp_path / "home").write_text("a file, where a folder is wanted")
    assert "set GRPO_HOME" in refusal(MODEL)


def test_pin_is_json_for_people(hub):
    run(DATASET)
    text = (repository_folder("dataset", "org/d") / "pin.json").read_text()
    assert json.loads(text) == {"name": "org/d", "licence": "apache-2.0", "gated": False, "revisions": {"v1": OLD}}
