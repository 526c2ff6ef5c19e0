"""From what changed to what runs. What is unsure runs everything."""

import subprocess
from pathlib import Path

import pytest

from grpo.matrix.import_graph import ImportGraph
from grpo.matrix.load import load_matrix
from grpo.matrix.select import changed_files, matches, select, shards

ROOT = Path(__file__).parents[3]
MATRIX = load_matrix(ROOT / "matrices")


@pytest.fixture(autouse=True)
def _one_graph(monkeypatch):
    monkeypatch.setattr("grpo.matrix.select.ImportGraph", lambda root: GRAPH)


GRAPH = ImportGraph(ROOT)


def chosen(*changed):
    return {one.case: one.reason for one in select(MATRIX, ROOT, changed)}


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("grpo/a/b.py", "grpo/**", True), ("grpo/a/b.py", "grpo/*", False), ("grpo/b.py", "grpo/*", True),
        ("conftest.py", "**/conftest.py", True), ("a/b/conftest.py", "**/conftest.py", True),
        ("a/xconftest.py", "**/conftest.py", False), ("docs/x.md", "*.md", False), ("x.md", "*.md", True),
        ("grpo.py", "grpo/**", False), ("gxpo/a", "g.po/**", False),
    ],
)  # fmt: skip
def test_patterns(path, pattern, expected):
    assert matches(path, [pattern]) is expected


def test_the_last_pattern_that_fits_decides():
    patterns = ["grpo/**", "!grpo/telemetry/**", "grpo/telemetry/timers.py"]
    paths = ["grpo/x.py", "grpo/telemetry/y.py", "grpo/telemetry/timers.py", "docs/x.md"]
    assert [matches(path, patterns) for path in paths] == [True, False, True, False]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("pyproject.toml", "may change anything"),
        ("ci/locks/cpu.txt", "may change anything"),
        ("tests/support/matrix.py", "may change anything"),
        ("tests/functional/conftest.py", "may change anything"),
        ("grpo/removed.py", "is gone"),
        ("grpo/recipes/tiny.yaml", "not known to be of some cases alone"),
        ("something/else.txt", "not known to be of some cases alone"),
    ],
)
def test_what_is_unsure_selects_everything(path, why):
    found = chosen("tests/unit/batching/test_packing.py", path)
    assert set(found) == set(MATRIX.all)
    assert all(reason.startswith(f"everything: {path}") and why in reason for reason in found.values())


@pytest.mark.parametrize("changed", [None, []])
def test_without_a_known_change_everything_is_selected(changed):
    assert {one.case for one in select(MATRIX, ROOT, changed)} == set(MATRIX.all)


def test_a_test_file_selects_its_own_case():
    path = "tests/unit/batching/test_packing.py"
    found = chosen(path)
    assert found.pop("unit-batching") == f"its test {path}"
    del found["unit-matrix"]  # this very file names it
    assert set(found) == {"tiny-hf"}


def test_a_module_selects_what_imports_it_and_not_the_rest():
    found = chosen("grpo/batching/packing.py")
    assert {"unit-batching", "trainer", "policy-sharded"} <= set(found)
    assert {"unit-data", "data-sources", "unit-rewards"}.isdisjoint(found)
    assert "needs grpo/batching/packing.py" in found["unit-batching"]


def test_data_of_the_matrix_select_what_names_it():
    found = chosen("matrices/cluster.yaml")
    assert {"unit-matrix", "8b-dtensor", "tiny-hf"} <= set(found)
    assert {"unit-algorithm", "trainer"}.isdisjoint(found)
    found = chosen("matrices/functional.yaml")
    assert found["parity"] == "its family: matrices/functional.yaml"
    assert {"trainer", "parity-product", "unit-matrix"} <= set(found)
    assert "unit-algorithm" not in found
    assert set(chosen("README.md")) == {"tiny-hf"}  # the main chain is always run


def test_no_selection_of_the_functional_layer_is_empty():
    for path in sorted(GRAPH.files)[::25]:
        assert any(MATRIX.all[case].layer == "functional" for case in chosen(path)), path


def git(folder, *arguments):
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e@x", "-C", str(folder), *arguments], check=True,
        capture_output=True, timeout=60,
    )  # fmt: skip


def test_what_git_says_has_changed(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "kept.py").write_text("1")
    (tmp_path / "gone.py").write_text("2")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "switch", "-qc", "mine")
    (tmp_path / "naïve file.py").write_text("3")
    git(tmp_path, "rm", "-q", "gone.py")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "second")
    (tmp_path / "kept.py").write_text("4")
    (tmp_path / "new.py").write_text("5")
    assert changed_files(tmp_path, "main") == ["gone.py", "kept.py", "naïve file.py", "new.py"]
    assert changed_files(tmp_path, "nowhere") is None
    assert changed_files(tmp_path / "elsewhere", "main") is None
    assert changed_files(tmp_path, "--output=x") is None
    assert not (tmp_path / "x...HEAD").exists()


def test_shards_hold_every_case_once_and_are_alike():
    cases = [case for case in MATRIX.all.values() if case.layer == "functional" and case.cadence == "pr"]
    divided = shards(cases, 3)
    assert sorted(case for one in divided for case in one) == sorted(case.id for case in cases)
    assert max(map(len, divided)) - min(map(len, divided)) <= 1
    assert divided == shards(cases[::-1], 3)
