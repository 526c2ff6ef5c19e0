import sys

import pytest

from grpo.errors import DataError, RewardError
from grpo.imports import import_function


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_module_of_the_current_directory(here):
    (here / "mine_a.py").write_text("def f(x):\n    return x + 1\n")
    assert import_function("mine_a:f", key="k", error=DataError)(1) == 2


@pytest.mark.parametrize("name", ["mine", "mine:", ":f", "mine:f.g", "../mine:f", "a..b:f", "mine:f()"])
def test_malformed_names(here, name):
    with pytest.raises(RewardError, match=r"^k: .*module:function"):
        import_function(name, key="k", error=RewardError)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("x = 1", "absent_b:f", "no module 'absent_b'"),
        ("x = 1", "mine_b:f", "no function 'f'; it has none"),
        ("def g(): pass", "mine_b:f", "no function 'f'; it has g"),
        ("f = 1", "mine_b:f", "no function 'f'"),
        ("import absent_c", "mine_b:f", "importing 'mine_b' failed: No module named 'absent_c'"),
        ("1 / 0", "mine_b:f", "ZeroDivisionError"),
        ("def f(:", "mine_b:f", "SyntaxError"),
    ],
)
def test_what_cannot_be_imported(here, text, name, message):
    (here / "mine_b.py").write_text(text)
    with pytest.raises(DataError, match=message):
        import_function(name, key="k", error=DataError)
