import sys

import pytest

from grpo.data.sources.function import function_records
from grpo.errors import DataError


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(body):
        (tmp_path / "mine_d.py").write_text(body)
        sys.modules.pop("mine_d", None)

    yield write
    sys.modules.pop("mine_d", None)


def test_records_of_the_users_function(module):
    module("def f(n):\n    return [{'prompt': str(i)} for i in range(n)]")
    assert list(function_records("mine_d:f", {"n": 2}, key="k")) == [
        ("mine_d:f:0", {"prompt": "0"}),
        ("mine_d:f:1", {"prompt": "1"}),
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return []", "returned an empty list"),
        ("return None", "returned NoneType; wanted: a list of dicts"),
        ("return iter([{}])", "wanted: a list of dicts"),
        ("return [{}, 3]", "mine_d:f:1: the record is int; wanted: a dict"),
        ("raise ValueError('no')", r"mine_d:f\(n=2\) raised ValueError: no"),
    ],
)
def test_anything_but_records_is_refused(module, body, message):
    module(f"def f(n):\n    {body}")
    with pytest.raises(DataError, match=message):
        function_records("mine_d:f", {"n": 2}, key="data.train")


def test_arguments_that_do_not_fit(module):
    module("def f(n): return [{}]")
    with pytest.raises(DataError, match=r"data.train.function: mine_d:f\(m=1\) raised TypeError: .*'m'"):
        function_records("mine_d:f", {"m": 1}, key="data.train")
