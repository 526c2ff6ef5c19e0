import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.config.tree import plain
from grpo.config.yaml_format import dump, read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3e-7", 3e-7), ("1E5", 1e5), (".5", 0.5), ("1.", 1.0), ("-2.5e+3", -2500.0), ("12", 12), ("-0", 0), ("+3", 3),
        ("1_000_000", 1_000_000), ("010", "010"), ("1:30", "1:30"), ("0x10", "0x10"), ("on", "on"), ("no", "no"),
        ("True", True), ("false", False), ("null", None), ("~", None), ("", None), ("2024-01-01", "2024-01-01"),
        ("[1, 2e-1, x, null]", [1, 0.2, "x", None]), ("{a: {b: 1}}", {"a": {"b": 1}}), ("[{a: 1}]", [{"a": 1}]),
        ("'3e-7'", "3e-7"), (".inf", math.inf), ("1e", "1e"), ("e5", "e5"), ("=", "="), ("<<", "<<"),
    ],
)  # fmt: skip
def test_plain_scalars_are_those_of_yaml_1_2(text, expected):
    found = plain(read(text, origin="x", lines=False))
    assert found == expected
    assert type(found) is type(expected)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(json_values)
def test_what_is_written_is_read_back(value):
    assert plain(read(dump(value), origin="x", lines=True)) == value


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text("0123456789.eE+-_:xyonfsNY ~", max_size=8), st.text("0123456789.eE+-_:xyonfsNY ~", max_size=8)
    )
)
def test_a_reader_of_yaml_1_1_takes_our_texts_for_texts(value):
    assert yaml.safe_load(dump(value)) == value
