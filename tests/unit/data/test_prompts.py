import json

import pytest

from grpo.config.schema import Data, FileDataset, FunctionDataset, Policy, Tokenizer
from grpo.data.prompt import fingerprint_of
from grpo.data.prompts import load_prompts, prompt_limit
from grpo.errors import DataError
from tests.support.tokenizers import character_tokenizer

RECORDS = [
    {"prompt": "1+1=", "answer": 2},
    {"prompt": "what is the largest?", "answer": "7"},
    {"prompt": "a", "answer": None},
]


@pytest.fixture
def load(tmp_path):
    def run(records, *, tokenizer=None, length=64, vocab_size=None, chat_template="default", **data):
        file = tmp_path / "d.jsonl"
        file.write_text("".join(json.dumps(r) + "\n" for r in records))
        dataset = FileDataset(kind="file", data_path=str(file), **data.pop("dataset", {"env_name": "math"}))
        policy = Policy(
            model_name="m", max_total_sequence_length=length, tokenizer=Tokenizer(chat_template=chat_template)
        )
        return load_prompts(
            dataset, Data(train=dataset, **data), policy, tokenizer or character_tokenizer(), vocab_size=vocab_size
        )

    return run


def test_prompts_hold_what_the_verifier_needs(load):
    found = load(RECORDS)
    assert [p.answer for p in found.prompts] == ["2", "7", None]
    assert [p.text for p in found.prompts] == [r["prompt"] for r in RECORDS]
    assert [p.record for p in found.prompts] == RECORDS
    assert {p.env_name for p in found.prompts} == {"math"}
    assert [p.prompt_id.rpartition(":")[2] for p in found.prompts] == ["1", "2", "3"]
    assert found.prompts[0].token_ids == tuple(character_tokenizer()("1+1=")["input_ids"])
    assert found.fingerprint == fingerprint_of(found.prompts)


def test_equal_prompts_stay_apart(load):
    found = load([RECORDS[0], RECORDS[0]])
    assert len({p.prompt_id for p in found.prompts}) == 2


def test_too_long_prompt_is_dropped_and_counted(load):
    found = load(RECORDS, length=12)
    assert [p.text for p in found.prompts] == ["1+1=", "a"]
    assert found.dropped_too_long == 1
    assert found.fingerprint != load(RECORDS).fingerprint


@pytest.mark.parametrize(("length", "kept"), [(5, 1), (4, 0)])
def test_one_new_token_has_room(load, length, kept):
    records = [{"prompt": "a"}, {"prompt": "1+1="}]
    assert len(load(records, length=length).prompts) == 1 + kept


def test_too_long_prompt_is_refused_by_name(load):
    with pytest.raises(
        DataError, match=r"1 of 3 prompts are longer than 11 tokens, the longest \S*d.jsonl:2 with 20; raise"
    ):
        load(RECORDS, length=12, overlong_prompts="error")


def test_all_dropped(load):
    with pytest.raises(DataError, match=r"3 of 3 .*none is left"):
        load([*RECORDS[:2], {"prompt": "abc"}], length=3)


def test_limit_is_the_smaller():
    dataset = FileDataset(kind="file", data_path="d")
    policy = Policy(model_name="m", max_total_sequence_length=10)
    assert [prompt_limit(Data(train=dataset, max_input_seq_length=n), policy) for n in (None, 4, 40)] == [9, 4, 9]


def test_empty_file(load):
    with pytest.raises(DataError, match=r"data.train: .*d.jsonl holds no records"):
        load([])


def test_environment_falls_back_to_the_default_and_must_be_named(load):
    assert load(RECORDS, dataset={}, default={"env_name": "own"}).prompts[0].env_name == "own"
    with pytest.raises(DataError, match=r"data.train.env_name: not set, nor data.default.env_name"):
        load(RECORDS, dataset={})


def test_template_and_first_records(load):
    found = load(RECORDS, dataset={"env_name": "e", "prompt_template": "{answer}?", "max_samples": 2})
    assert [p.text for p in found.prompts] == ["2?", "7?"]


def test_chat_template_writes_the_one_beginning_of_sequence(load):
    found = load(RECORDS[:1], tokenizer=character_tokenizer(bos=True, template=True))
    assert found.prompts[0].text == "<s>[user]1+1=[assistant]"
    assert found.prompts[0].token_ids.count(1) == 1
    plain = load(RECORDS[:1], tokenizer=character_tokenizer(bos=True, template=True), chat_template="none")
    assert plain.prompts[0].token_ids[0] == 1
    assert plain.prompts[0].token_ids.count(1) == 1


def test_vocabulary_of_another_model(load):
    with pytest.raises(DataError, match=r"policy.tokenizer.name does not fit policy.model_name"):
        load(RECORDS, vocab_size=10)


def test_records_of_a_function():
    dataset = FunctionDataset(
        kind="function", function="grpo.data.tasks:largest_digit", kwargs={"split": "heldout", "count": 7}
    )
    data = Data(train=dataset, default={"env_name": "e"})
    found = load_prompts(dataset, data, Policy(model_name="m"), character_tokenizer())
    assert len(found.prompts) == 7
    assert all(len(p.token_ids) == 8 for p in found.prompts)
