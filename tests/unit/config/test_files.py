# ruff: noqa: E501 - one case a line
import os

import pytest

from grpo.config import load_config
from grpo.errors import ConfigError
from grpo.recipes import shipped_recipes


def message(recipe):
    with pytest.raises(ConfigError) as error:
        load_config(recipe)
    return str(error.value)


def test_a_missing_recipe_lists_the_shipped_ones():
    shipped = (
        "grpo_math_1b, grpo_math_70b, grpo_math_70b_megatron, grpo_math_8b, grpo_math_8b_megatron, tiny, tiny_reasoning"
    )
    assert (
        message("tinny")
        == f"there is no recipe 'tinny'; did you mean tiny?; shipped: {shipped}, or a path to a YAML file"
    )
    assert list(shipped_recipes()) == shipped.split(", ")
    assert shipped in message("nowhere/own.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "own.yaml: a recipe is a mapping such as `grpo: ...`, but it is empty"),
        ("# nothing\n", "own.yaml: a recipe is a mapping such as `grpo: ...`, but it is empty"),
        ("- a\n- b\n", "own.yaml: a recipe is a mapping such as `grpo: ...`, but there is a list at the top"),
        ("hello", "own.yaml: a recipe is a mapping such as `grpo: ...`, but there is a str at the top"),
        (b"\x7fELF\x02\x01\xff\xfe", "own.yaml: not YAML: it is not UTF-8 text"),
        (b"a\x00b: 1", "own.yaml: not YAML: unacceptable character #x0000: special characters are not allowed"),
        ("grpo:\n  seed: 1\n  seed: 2\n", "own.yaml:3: the key 'seed' is given twice, first on line 2"),
        ("grpo:\n  - x\n seed: 1\n", "own.yaml:3: not YAML: while parsing a block mapping expected <block end>, but found '<block mapping start>'"),
        ("grpo: !!python/object:os.system {}\n", "own.yaml:1: the tag tag:yaml.org,2002:python/object:os.system is not allowed"),
        ("env: !!set {a}\n", "own.yaml:1: the tag tag:yaml.org,2002:set is not allowed"),
        ("grpo: {seed: !!binary x}\n", "own.yaml:1: the tag tag:yaml.org,2002:binary is not allowed"),
        ("[" * 600, "own.yaml: not YAML: nested too deeply"),
        ("1: x\n", "own.yaml:1: the key '1' is not text; put it in quotes"),
        ("a: 1\n---\nb: 2\n", "own.yaml:2: not YAML: expected a single document in the stream but found another document"),
        ("grpo: &a\n  x: *a\n", "own.yaml:1: a YAML alias that contains itself"),
        ("env: &a [*a]\n", "own.yaml:1: a YAML alias that contains itself"),
        ("defaults: 3\n", "own.yaml:1: `defaults` is the name or path of a recipe, or a list of them"),
        ("defaults: {a: b}\n", "own.yaml:1: `defaults` is the name or path of a recipe, or a list of them"),
    ],
    ids=lambda value: repr(value[:30]),
)  # fmt: skip
def test_a_file_that_is_no_recipe(write, text, expected):
    assert message(write(text)) == expected


def test_a_folder_is_no_recipe(tmp_path):
    (tmp_path / "own").mkdir()
    assert message("./own").startswith("own: cannot be read")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file(write, tmp_path):
    path = write("defaults: tiny\n")
    (tmp_path / path).chmod(0)
    assert message(path) == "own.yaml: cannot be read: Permission denied"


def test_a_missing_parent_is_named_with_its_line(write):
    assert message(write("grpo: {}\ndefaults: tinny\n")).startswith(
        "own.yaml:2: `defaults`: there is no recipe 'tinny'; did you mean tiny?; shipped: "
    )


def test_parents_are_relative_to_their_file_and_the_later_wins(write):
    write("defaults: tiny\ngrpo: {seed: 1, val_period: 3}\n", "sub/a.yaml")
    write("grpo: {seed: 2}\n", "sub/deep/b.yaml")
    config = load_config(write("defaults: [a.yaml, deep/b.yaml]\ngrpo: {stop_window: 4}\n", "sub/own.yaml")).config
    assert (config.grpo.seed, config.grpo.val_period, config.grpo.stop_window) == (2, 3, 4)


def test_a_circle_of_parents_is_refused(write):
    write("defaults: b.yaml\n", "a.yaml")
    write("defaults: a.yaml\n", "b.yaml")
    assert message("a.yaml") == "b.yaml: `defaults` go round in a circle: a.yaml -> b.yaml -> a.yaml"


def test_one_parent_twice_is_no_circle(write):
    write("defaults: tiny\n", "a.yaml")
    write("defaults: tiny\n", "b.yaml")
    assert load_config(write("defaults: [a.yaml, b.yaml]\n")).config == load_config("tiny").config
