import json

import pytest

from grpo.errors import ConfigError, DataError
from grpo.trainer.prepare import prepare, train_sampling, validation_sampling
from tests.support.small_run import small


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def prepared(tmp_path, *overrides):
    return prepare(small(tmp_path / "run", *overrides))


def test_prompts_that_validation_has_are_left_out_of_training(tmp_path):
    same, other = {"prompt": "1,2,3,4=", "answer": "4"}, {"prompt": "5,2,3,4=", "answer": "5"}
    data = [
        "data.train.kind=file", f"data.train.data_path={write(tmp_path / 'train.jsonl', same, other, same)}",
        "data.validation.kind=file", f"data.validation.data_path={write(tmp_path / 'validation.jsonl', same)}",
    ]  # fmt: skip
    apart = prepared(tmp_path, *data)
    assert [prompt.text for prompt in apart.train.prompts] == ["5,2,3,4="]
    assert apart.shared_prompts == 2
    together = prepared(tmp_path, *data, "data.keep_validation_apart=false")
    assert (len(together.train.prompts), together.shared_prompts) == (3, 0)


def test_training_on_validation_data_alone_is_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"all 256 prompts are in data.validation too; .* data.keep_validation_apart=false"
    ):
        prepared(tmp_path, "data.train.kwargs={split: heldout, count: 256}")


def test_chance_is_the_best_constant_answer_on_validation(tmp_path):
    assert 0.1 <= prepared(tmp_path).chance <= 0.2
    without = ["data.validation=null", "grpo.val_period=0", "grpo.val_at_start=false", "grpo.val_at_end=false"]
    assert prepared(tmp_path, *without).chance is None


def test_training_and_validation_have_their_own_sampling(tmp_path):
    made = prepared(
        tmp_path, "policy.generation.temperature=0.7", "policy.generation.stop_token_ids=[1,13]",
        "policy.generation.validation.top_k=3", "policy.generation.validation.temperature=0.5",
        "policy.generation.validation.max_new_tokens=1",
    )  # fmt: skip
    training = train_sampling(made.config, made.tokenizer)
    validation = validation_sampling(made.config, made.tokenizer)
    assert (training.temperature, training.top_k, training.max_new_tokens) == (0.7, None, 2)
    assert (validation.temperature, validation.top_k, validation.max_new_tokens) == (0.5, 3, 1)
    assert training.stop_token_ids == validation.stop_token_ids == (1, 13)


def test_a_context_that_the_model_does_not_have(tmp_path):
    with pytest.raises(ConfigError, match=r"policy.max_total_sequence_length=65 is more than the 64 positions"):
        prepared(tmp_path, "policy.max_total_sequence_length=65")
