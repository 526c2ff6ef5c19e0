"""The tables of docs/parallelism.md and docs/refit.md: each kind of fault has its tests, and they are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/parallelism.md").read_text(encoding="utf-8")
KINDS = (
    "c1", "c3", "c5", "c6", "c8", "c9", "c13", "d4", "d5", "d7", "d8", "d9", "d12", "d13",
    "e1", "e3", "e4", "e6", "e7", "e10", "f1", "f3", "f4", "f5", "f11", "f12",
    "g1", "g2", "g4", "g5", "g6", "g7", "g9", "g11", "g12",
    "h2", "h4", "h5", "h6", "h7", "h9",
)  # fmt: skip
ROWS = dict(re.findall(r"^\| ([a-z]\d+) \|[^|]*\| (.*) \|$", PAGE, re.MULTILINE))


def test_every_kind_is_in_the_table():
    assert tuple(ROWS) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_of_a_kind_exist(kind):
    named = re.findall(r"`([^`]+)`", ROWS[kind])
    assert named
    check(named)


def test_the_tests_that_the_page_of_refits_names_exist():
    named = re.findall(r"`(tests/[^`]+::[^`]+)`", (ROOT / "docs/refit.md").read_text(encoding="utf-8"))
    assert len(named) > 10
    check(named)


def check(named):
    for test in named:
        file, name = test.split("::")
        functions = [each.name for each in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
                     if isinstance(each, ast.FunctionDef)]  # fmt: skip
        assert name.startswith("test_")
        assert name in functions, test
