# ruff: noqa: E501, ISC004 - one case a line
import pytest

from grpo.config import load_config
from grpo.errors import ConfigError


def message(recipe, *overrides):
    with pytest.raises(ConfigError) as error:
        load_config(recipe, overrides)
    return str(error.value)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("loss_fn.ratio_clp_min=.1", "override: unknown key loss_fn.ratio_clp_min; did you mean loss_fn.ratio_clip_min?"),
        # A right leaf in a wrong section, and in none.
        ("policy.lr=1e-3", "override: unknown key policy.lr; did you mean policy.optimizer.kwargs.lr?"),
        ("ratio_clip_max=.1", "override: unknown key ratio_clip_max; did you mean loss_fn.ratio_clip_max?"),
        ("polcy.model_name=x", "override: unknown key polcy; did you mean policy?"),
        ("env.exact_match.timeout=3", "override: unknown key env.exact_match.timeout; did you mean env.exact_match.timeout_s?"),
        ("zzz=1", "override: unknown key zzz"),
        (
            "data.train.task=spell_backward",
            "override: unknown key data.train.task: it belongs to data.train.kind=reasoning_gym, and kind is function "
            "(grpo/recipes/tiny.yaml:50)",
        ),
        (
            "policy.optimizer.kwargs.fused=false",
            "override: unknown key policy.optimizer.kwargs.fused: the backend chooses it; there is nothing to set",
        ),
        ("policy.megatron_cfg.optimizer.lr=1", "override: unknown key policy.megatron_cfg.optimizer: both backends take policy.optimizer and policy.scheduler"),
        ("env.exact_match.math_verify_impl=x", "override: unknown key env.exact_match.math_verify_impl: use env.NAME.verifier=math"),
        ("grpo.seed=abc", 'override: grpo.seed = "abc": expected a whole number at least 0'),
        ("grpo.seed=1.5", "override: grpo.seed = 1.5: expected a whole number at least 0"),
        ("grpo.seed=true", "override: grpo.seed = true: expected a whole number at least 0"),
        ("grpo.seed=", "override: grpo.seed = null: expected a whole number at least 0"),
        ("policy.random_weights=1", "override: policy.random_weights = 1: expected true or false"),
        ("policy.optimizer.kwargs.lr=.nan", "override: policy.optimizer.kwargs.lr = NaN: expected a number above 0"),
        ("policy.optimizer.kwargs.lr=true", "override: policy.optimizer.kwargs.lr = true: expected a number above 0"),
        ("policy.optimizer.kwargs.betas=[1]", "override: policy.optimizer.kwargs.betas = [1]: expected a list of numbers of length 2"),
        (
            "policy.generation.stop_token_ids=[1, x]",
            'override: policy.generation.stop_token_ids[1] = "x": expected a list of whole numbers, or null',
        ),
        ("policy.precision=fp8", 'override: policy.precision = "fp8": expected one of float32, bfloat16'),
        ("policy.tokenizer=null", "override: policy.tokenizer = null: expected a mapping"),
        ("data.train.kind=foo", 'override: data.train.kind = "foo": expected one of file, hub, reasoning_gym, function'),
        ("data.validation=3", "override: data.validation = 3: expected a mapping with `kind`: one of file, hub, reasoning_gym, function, or null"),
        ("data.train.kind=file", "data.train.data_path is missing: expected text"),
        (
            "policy.tokenizer.chat_template_kwargs.x=[1]",
            "override: policy.tokenizer.chat_template_kwargs.x = [1]: expected true or false or a whole number or a number or text",
        ),
        (
            "policy.tokenizer.name=${policy.model_name}",
            'override: policy.tokenizer.name = "${policy.model_name}": there is no interpolation; null takes what follows from '
            "other keys, where that is so",
        ),
        ("foo", "override 'foo': write key=value, or ~key to forget an inherited value"),
        ("a..b=1", "override 'a..b=1': 'a..b' is not a dotted key such as policy.optimizer.kwargs.lr"),
        ("=1", "override '=1': '' is not a dotted key such as policy.optimizer.kwargs.lr"),
        ("grpo.seed=[1", "override grpo.seed=[1: not YAML: while parsing a flow sequence expected ',' or ']', but got '<stream end>'"),
    ],
)  # fmt: skip
def test_a_wrong_override(override, expected):
    assert message("tiny", override) == expected


@pytest.mark.parametrize("text", ["{a: 1}", "{question}", "12", "1e-3", "true", "[a", "a: b: c", "'3'"])
def test_where_text_is_wanted_an_override_is_text(text):
    assert load_config("tiny", [f"policy.model_name={text}"]).config.policy.model_name == text.strip("'")


def test_a_missing_section_names_what_it_is(write):
    assert message(write("defaults: tiny\n"), "~data.train").startswith(
        "data.train is missing: expected a mapping with `kind`"
    )
    assert message("tiny", "~policy.model_name").startswith(
        "policy.model_name is missing: expected text (folder, shipped name"
    )
    assert (
        message("tiny", "~data.train.kind")
        == "data.train.kind is missing: expected one of file, hub, reasoning_gym, function"
    )


def test_errors_of_a_file_have_its_line(write):
    path = write("defaults: tiny\ngrpo:\n  seed: x\n\nlos_fn:\n  kind: gspo\n")
    assert message(path) == (
        "2 errors in the configuration:\n"
        "  - own.yaml:5: unknown key los_fn; did you mean loss_fn?\n"
        '  - own.yaml:3: grpo.seed = "x": expected a whole number at least 0'
    )


def test_text_that_yaml_takes_for_a_number_says_so(write):
    assert message(write("defaults: tiny\nlogger:\n  wandb: {name: 12}\n")) == (
        "own.yaml:3: logger.wandb.name = 12: expected text, or null; put it in quotes"
    )


def test_whole_numbers_are_numbers():
    assert load_config("tiny", ["policy.generation.temperature=1"]).config.policy.generation.temperature == 1.0
