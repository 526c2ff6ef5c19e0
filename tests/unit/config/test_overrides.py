# ruff: noqa: E501 - one case a line
import pytest

from grpo.config.overrides import parse_overrides
from grpo.config.tree import plain
from grpo.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("x=True", True), ("x=null", None), ("x=", None), ("x=[1,2]", [1, 2]), ("x=3e-7", 3e-7), ("x=a=b", "a=b"), ("x= 1 ", 1),
        ("x={split: train, n: 2}", {"split": "train", "n": 2}), ("x='12'", "12"), ("+x=1", 1), ("++x=1", 1),
    ],
)  # fmt: skip
def test_values_are_yaml(override, value):
    found = plain(parse_overrides([override]))
    assert found == {"x": value}
    assert type(found["x"]) is type(value)


def test_the_later_wins_and_mappings_are_merged():
    assert plain(parse_overrides(["a.b=1", "a={c: 2}", "a.b=3"])) == {"a": {"b": 3, "c": 2}}
    assert plain(parse_overrides(["a.b=1", "a=null"])) == {"a": None}


@pytest.mark.parametrize("override", ["", "x", "=1", ".x=1", "x.=1", "~", "~x=1", "~a..b"])
def test_what_is_no_override_is_refused(override):
    with pytest.raises(ConfigError, match="override "):
        parse_overrides([override])
