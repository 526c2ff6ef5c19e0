"""Tests and cases: each test has one, and a case runs its own tests alone."""

from pathlib import Path

import pytest

from grpo.errors import MatrixError
from grpo.matrix.load import load_matrix
from grpo.matrix.suites import (
    RUNS,
    RUNS_TEST,
    Owner,
    case_of,
    files_in,
    files_of,
    idle_patterns,
    owners_of,
    pytest_arguments,
)

ROOT = Path(__file__).parents[3]
MATRIX = load_matrix(ROOT / "matrices")
OWNERS = [
    Owner("folder", "tests/functional/w/**"),
    Owner("deep", "tests/functional/w/m/**"),
    Owner("file", "tests/functional/w/m/test_p.py"),
    Owner("one", "tests/functional/w/m/test_p.py::test_a[4]"),
]


@pytest.mark.parametrize(
    ("node", "case"),
    [
        ("tests/functional/w/test_x.py::test_a", "folder"),
        ("tests/functional/w/m/test_x.py", "deep"),
        ("tests/functional/w/m/test_p.py", "file"),
        ("tests/functional/w/m/test_p.py::test_a[2]", "file"),
        ("tests/functional/w/m/test_p.py::test_a[4]", "one"),
        ("tests/functional/w/m/test_p.py::test_a[41]", "file"),
        (f"{RUNS_TEST}[tiny-hf]", "tiny-hf"),
    ],
)
def test_the_most_specific_pattern_decides(node, case):
    assert case_of(node, OWNERS) == case
    assert case_of(node, OWNERS[::-1]) == case


def test_a_test_of_no_case_or_of_two_is_an_error():
    with pytest.raises(MatrixError, match=r"tests/unit/test_x.py::test_a belongs to no case: name its file"):
        case_of("tests/unit/test_x.py::test_a", OWNERS)
    twice = [*OWNERS, Owner("another", "tests/functional/w/**")]
    with pytest.raises(MatrixError, match="belongs to another and folder"):
        case_of("tests/functional/w/test_x.py", twice)


@pytest.mark.parametrize("layer", ["unit", "functional"])
def test_every_test_file_belongs_to_exactly_one_case_of_its_layer(layer):
    owners = owners_of(MATRIX)
    for file in files_in(ROOT, layer):
        if file != RUNS:
            assert MATRIX.suites[case_of(file, owners)].layer == layer, file


def test_every_pattern_of_a_suite_has_tests():
    assert idle_patterns(MATRIX, ROOT) == []


def test_a_case_runs_exactly_its_own_tests():
    suites = MATRIX.suites.values()
    mine = {suite.id: set(files_of(suite, MATRIX, ROOT)) for suite in suites}
    whole = [file for files in mine.values() for file in files]
    assert set(whole) == {file for layer in ("unit", "functional") for file in files_in(ROOT, layer)} - {RUNS}
    assert pytest_arguments(MATRIX, "unit", ["unit-batching"]) == ["tests/unit/batching"]
    assert pytest_arguments(MATRIX, "functional", ["tiny-hf"]) == [f"{RUNS_TEST}[tiny-hf]"]


def test_what_is_more_specific_and_not_chosen_is_deselected():
    def suite(case_id, *tests):
        return MATRIX.suites["trainer"].model_copy(update={"id": case_id, "tests": list(tests)})

    suites = {
        "whole": suite("whole", "tests/functional/w/**"),
        "one": suite("one", "tests/functional/w/test_p.py::test_a[4]"),
        "night": suite("night", "tests/functional/w/test_p.py::test_b").model_copy(update={"cadence": "nightly"}),
    }
    from dataclasses import replace

    matrix = replace(MATRIX, suites=suites)
    one, night = "tests/functional/w/test_p.py::test_a[4]", "tests/functional/w/test_p.py::test_b"
    assert pytest_arguments(matrix, "functional", ["whole"]) == [
        "tests/functional/w", "--deselect", one, "--deselect", night,
    ]  # fmt: skip
    assert pytest_arguments(matrix, "functional", ["whole", "one"]) == [
        "tests/functional/w", one, "--deselect", night,
    ]  # fmt: skip
    assert pytest_arguments(matrix, "functional", ["night"]) == [night, "-m", ""]
    inner = {
        "folder": suite("folder", "tests/functional/w/m/**"),
        "file": suite("file", "tests/functional/w/test_q.py"),
    }
    matrix = replace(MATRIX, suites={"whole": suites["whole"], **inner})
    # Neither is the beginning of another folder's or file's name.
    assert pytest_arguments(matrix, "functional", ["whole"]) == [
        "tests/functional/w", "--deselect", "tests/functional/w/m/", "--deselect", "tests/functional/w/test_q.py::",
    ]  # fmt: skip


def test_ids_are_exact_and_of_the_layer():
    with pytest.raises(MatrixError, match=r"no case 'tiny'.*did you mean tiny-hf"):
        pytest_arguments(MATRIX, "functional", ["tiny"])
    with pytest.raises(MatrixError, match="unit-data is a case of the unit layer, not of functional"):
        pytest_arguments(MATRIX, "functional", ["unit-data"])
