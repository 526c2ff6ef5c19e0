"""Prompts of every kind of source, by the same call."""

import json

import pytest

from grpo.config.schema import Data, FileDataset, HubDataset, Policy, ReasoningGymDataset
from grpo.data.prompts import load_prompts
from tests.support.tokenizers import CHARACTERS, character_tokenizer

ROWS = [{"prompt": f"what is {i}?", "answer": i} for i in range(50)]


def load(dataset):
    data = Data(train=dataset, default={"env_name": "e"})
    tokenizer = character_tokenizer(CHARACTERS + "ABCDEFGHIJKLMNOPQRSTUVWXYZ()->")
    return load_prompts(dataset, data, Policy(model_name="m"), tokenizer)


def test_parquet_jsonl_and_hub_folder_give_the_same_prompts(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pytest.importorskip("datasets", reason="datasets is not installed")
    lines, table = tmp_path / "lines" / "train.jsonl", tmp_path / "table" / "train.parquet"
    lines.parent.mkdir()
    table.parent.mkdir()
    lines.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    parquet.write_table(pa.Table.from_pylist(ROWS), table)
    found = [
        load(dataset)
        for dataset in (
            FileDataset(kind="file", data_path=str(lines)),
            FileDataset(kind="file", data_path=str(table)),
            HubDataset(kind="hub", dataset_name=str(lines.parent)),
            HubDataset(kind="hub", dataset_name=str(table.parent)),
        )
    ]
    assert len({prompts.fingerprint for prompts in found}) == 1
    assert [p.answer for p in found[0].prompts] == [str(i) for i in range(50)]


def test_template_over_the_metadata_of_a_task():
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    found = load(
        ReasoningGymDataset(
            kind="reasoning_gym",
            task="spell_backward",
            size=20,
            seed=3,
            task_kwargs={"min_word_len": 3, "max_word_len": 3},
            prompt_template="{metadata[word]}=",
        )
    )
    assert all(p.text == p.answer[::-1] + "=" for p in found.prompts)
