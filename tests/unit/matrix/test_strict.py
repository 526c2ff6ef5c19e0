from typing import Literal

import pytest
from pydantic import Field

from grpo.config.schema.base import Section
from grpo.config.yaml_format import read
from grpo.errors import MatrixError
from grpo.matrix.schema.types import Day
from grpo.matrix.strict import build, origin_of


class Inner(Section):
    size: int = Field(gt=0, description="in metres")
    kind_of: Literal["a", "b"] = "a"


class Outer(Section):
    inner: Inner
    named: dict[str, Inner] = Field({})
    day: Day | None = None


def parsed(text):
    return read(text, origin="f.yaml", lines=True)


def test_values_are_typed():
    built = build(Outer, parsed("inner: {size: 3}\nnamed: {x: {size: 1, kind_of: b}}\nday: '2026-02-28'\n"))
    assert (built.inner.size, built.named["x"].kind_of, built.day.month) == (3, "b", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inner:\n  size: 0\n", r"f.yaml:2: inner.size = 0: expected a whole number above 0 \(in metres\)"),
        ("inner:\n  siz: 1\n  size: 1\n", r"f.yaml:2: unknown key inner.siz; did you mean inner.size\?"),
        (
            "inner: {size: 1}\nnamed:\n  x:\n    sise: 2\n    size: 2",
            r"f.yaml:4: unknown key named.x.sise; did you mean named.x.size",
        ),
        ("inner: {}\n", r"f.yaml:1: inner.size is missing: expected a whole number above 0 \(in metres\)"),
        ("inner: {size: 1.5}\n", "expected a whole number"),
        ("inner: {size: 1}\nday: 2026-02-30\n", "f.yaml:2: day = .2026-02-30.: expected a date such as"),
        ("inner: {size: 1}\nnamed: {x: {size: 1, kind_of: c}}", "expected one of a, b"),
    ],
)
def test_errors(text, message):
    with pytest.raises(MatrixError, match=message):
        build(Outer, parsed(text))


def test_the_origin_of_what_is_absent_is_that_of_the_mapping_above():
    tree = parsed("inner:\n  size: 3\n")
    assert [origin_of(tree, key) for key in ("inner.size", "inner.other", "x.y")] == [
        "f.yaml:2",
        "f.yaml:1",
        "f.yaml:1",
    ]
