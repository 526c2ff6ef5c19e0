import pytest
from pydantic import BaseModel

from grpo.config.schema import Config
from grpo.telemetry.secrets import REMOVED, Redactor, is_secret_name, secret_values

SECRET = "hf_Zq9planted"  # noqa: S105


@pytest.mark.parametrize(
    "name", ["--api-key", "api_key", "HF_TOKEN", "env.judge.kwargs.password", "clientSecret", "--token", "AWS_SECRET_X"]
)
def test_names_of_credentials(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["max_new_tokens", "tokenizer", "--keyboard", "train_mb_tokens", "monkey", "seed"])
def test_names_of_other_things(name):
    assert not is_secret_name(name)


def test_no_configuration_key_reads_as_a_credential():
    def fields(model, seen):
        for name, field in model.model_fields.items():
            seen.add(name)
            for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
                if isinstance(part, type) and issubclass(part, BaseModel):
                    fields(part, seen)
        return seen

    names = fields(Config, set())
    assert {"num_prompts_per_step", "stop_token_ids", "max_new_tokens"} <= names
    assert [name for name in sorted(names) if is_secret_name(name)] == []


def test_command_lines_lose_the_values_and_keep_the_rest():
    redactor = Redactor([SECRET])
    command = ["grpo", "--api-key", "abc", "env.x.kwargs.password=pw", "policy.seed=3", f"name=run-{SECRET}"]
    assert redactor.command(command) == [
        "grpo", "--api-key", REMOVED, f"env.x.kwargs.password={REMOVED}", "policy.seed=3", f"name=run-{REMOVED}"
    ]  # fmt: skip
    assert secret_values(command) == ["abc", "pw"]


def test_values_of_the_environment_are_known_by_name(tmp_path):
    environ = {
        "MY_TOKEN": SECRET, "DB_PASSWORD": "longer-" + SECRET, "TOKENIZERS_PARALLELISM": "false", "HOME": "/home/me",
        "SSH_KEY_FOLDER": str(tmp_path),
    }  # fmt: skip
    redactor = Redactor.from_environment(environ)
    assert redactor.text(f"a longer-{SECRET} b {SECRET}") == f"a {REMOVED} b {REMOVED}"
    assert redactor.text(f"false /home/me {tmp_path}") == f"false /home/me {tmp_path}"


def test_json_loses_known_values_and_what_secret_names_hold():
    value = {"api_key": "x", "note": [f"see {SECRET}", 1, None], "token": None, "deep": {"password": 5}}
    expected = {"api_key": REMOVED, "note": [f"see {REMOVED}", 1, None], "token": None, "deep": {"password": REMOVED}}
    assert Redactor([SECRET]).json(value) == expected


def test_yaml_keeps_its_text_unless_there_is_a_secret():
    text = "a: 1  # comment\n"
    assert Redactor().config(text) == text
    assert Redactor([SECRET]).config(f"a: 1\nkwargs:\n  api_key: x\n  u: 'http://{SECRET}@h'\n") == (
        f"a: 1\nkwargs:\n  api_key: '{REMOVED}'\n  u: http://{REMOVED}@h\n"
    )
