import json
import pickle

import pytest

from grpo.data.sources.hub import hub_records
from grpo.errors import DataError
from grpo.hub.store import Pin, commit_folder, write_pin

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

COMMIT = "d" * 40
ROWS = [{"prompt": f"p{i}", "answer": i} for i in range(3000)]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return tmp_path


def write(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))


def read(name, *, subset=None, split="train", revision=None):
    return list(hub_records(str(name), subset=subset, split=split, revision=revision, key="data.train"))


def test_local_folder_of_files(tmp_path):
    write(tmp_path / "d" / "train.jsonl", ROWS)
    write(tmp_path / "d" / "test.jsonl", ROWS[:2])
    found = read(tmp_path / "d")
    assert [record for _, record in found] == ROWS
    assert found[7][0] == f"{tmp_path / 'd'}/train:7"
    assert [record for _, record in read(tmp_path / "d", split="test")] == ROWS[:2]


def test_subsets_of_the_readme(tmp_path):
    for name in ("easy", "hard"):
        write(tmp_path / "d" / name / "train.jsonl", [{"prompt": name}])
    configs = "".join(f"- config_name: {n}\n  data_files: {n}/train.jsonl\n" for n in ("easy", "hard"))
    (tmp_path / "d" / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    assert read(tmp_path / "d", subset="hard")[0][1] == {"prompt": "hard"}
    with pytest.raises(DataError, match=r"(?s)data.train: .*'other' not found.*easy.*hard"):
        read(tmp_path / "d", subset="other")


def test_split_that_is_not_there_lists_those_that_are(tmp_path):
    write(tmp_path / "d" / "train.jsonl", ROWS[:1])
    with pytest.raises(DataError, match=r"data.train.split: .* has no split 'trian'; it has: train"):
        read(tmp_path / "d", split="trian")


def test_saved_to_disk(tmp_path):
    datasets.Dataset.from_list(ROWS[:5]).save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS[:5])}).save_to_disk(tmp_path / "many")
    for folder in ("one", "many"):
        assert [record for _, record in read(tmp_path / folder)] == ROWS[:5]


def test_stored_by_name_and_revision(tmp_path):
    folder = commit_folder("dataset", "org/d", COMMIT)
    write(folder / "data" / "train.jsonl", ROWS[:4])
    write_pin("dataset", Pin("org/d", revisions={"v1": COMMIT}))
    assert [record for _, record in read("org/d", revision="v1")] == ROWS[:4]
    assert read("org/d")[0][0] == "org/d/train:0"
    with pytest.raises(DataError, match=r"org/d at revision v2: .*grpo fetch RECIPE data.train.dataset_name=org/d"):
        read("org/d", revision="v2")


def test_nothing_is_fetched():
    with pytest.raises(DataError, match=r"data.train.dataset_name=org/absent: .*grpo fetch RECIPE"):
        read("org/absent")


@pytest.mark.parametrize("name", ["train.pkl", "sub/build.py", "train.pickle"])
def test_files_that_run_code_are_refused_unread(tmp_path, name):
    file = tmp_path / "d" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(pickle.dumps(ROWS))
    with pytest.raises(DataError, match="can run code"):
        read(tmp_path / "d")


@pytest.mark.parametrize("content", ["", '{"prompt": "a"}\n{"prompt": \n'])
def test_unreadable_folder_names_the_key(tmp_path, content):
    (tmp_path / "d").mkdir()
    if content:
        (tmp_path / "d" / "train.jsonl").write_text(content)
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "d")


def test_reading_writes_no_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write(tmp_path / "d" / "train.jsonl", ROWS)
    read(tmp_path / "d")
    assert not (tmp_path / "cache").exists()
