"""Quarantine is short and rare; a quarantined test runs and does not gate."""

import datetime as dt
import textwrap
from pathlib import Path

import pytest

from grpo.matrix.load import load_matrix
from grpo.matrix.quarantine import problems
from grpo.matrix.schema import Quarantine

ROOT = Path(__file__).parents[3]
TODAY = dt.date(2026, 11, 30)
HELD = {"reason": "r", "issue": "1", "owner": "o", "since": "2026-11-20", "until": "2026-12-10"}


def quarantine(count=1, **changes):
    cases = {f"c{n}": {**HELD, **changes} for n in range(count)}
    return Quarantine.model_validate({"schema_version": 1, "cases": cases})


def test_that_of_the_matrix_keeps_to_its_limits():
    matrix = load_matrix(ROOT / "matrices")
    assert problems(matrix.quarantine, len(matrix.all), dt.datetime.now(dt.UTC).date()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"until": "2026-12-20"}, None),
        ({"until": "2026-12-21"}, "until 2026-12-21: at most 30 days after 2026-11-20"),
        ({"until": "2026-11-30"}, None),
        ({"until": "2026-11-29"}, "its quarantine ended on 2026-11-29"),
        ({"until": "2026-11-10"}, "at most 30 days after"),
        ({"extended_from": "2026-12-05", "until": "2027-01-04"}, None),
        ({"extended_from": "2026-12-05", "until": "2027-01-05"}, "at most 30 days after 2026-12-05"),
        ({"extended_from": "2026-12-21", "until": "2027-01-05"}, "its first end, within 30 days of 2026-11-20"),
        ({"extended_from": "2026-11-19", "until": "2026-12-05"}, "its first end"),
    ],
)
def test_thirty_days_and_one_extension(changes, message):
    found = problems(quarantine(**changes), 100, TODAY)
    assert (found == []) if message is None else any(message in one for one in found)


@pytest.mark.parametrize(("held", "cases", "ok"), [(1, 50, True), (1, 49, False), (2, 100, True), (3, 149, False)])
def test_two_in_a_hundred(held, cases, ok):
    found = problems(quarantine(held), cases, TODAY)
    assert (found == []) is ok
    assert ok or "are quarantined, and at most" in found[0]


@pytest.mark.parametrize("key", ["reason", "issue", "owner", "since", "until"])
def test_every_one_says_why_for_how_long_and_whose_it_is(key):
    with pytest.raises(ValueError, match=key):
        quarantine(**{key: ""})


def test_a_quarantined_test_runs_and_does_not_gate(pytester, monkeypatch):
    """With the project's own conftest, in a project that has this layer and one quarantined case."""
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text().replace("parents[1]", "parent"))
    matrices = pytester.mkdir("matrices")
    (matrices / "budgets.yaml").write_text((ROOT / "matrices" / "budgets.yaml").read_text())
    (matrices / "partitions").mkdir()
    (matrices / "partitions" / "here.yaml").write_text((ROOT / "matrices/partitions/cpu-local.yaml").read_text())
    (matrices / "stacks").mkdir()
    (matrices / "stacks" / "cpu.yaml").write_text((ROOT / "matrices/stacks/cpu.yaml").read_text())
    entry = "partitions: [here], time_limit: '00:01:00', tier: L0, cadence: pr, owner: o"
    (matrices / "unit.yaml").write_text(
        textwrap.dedent(f"""
        schema_version: 1
        layer: unit
        cases:
          held: {{tests: [tests/unit/a/**], {entry}}}
          other: {{tests: [tests/unit/b/**], {entry}}}
    """)
    )
    held = ", ".join(f"{key}: '{value}'" for key, value in HELD.items())
    (matrices / "quarantine.yaml").write_text(f"schema_version: 1\ncases:\n  held: {{{held}}}\n")
    for folder in ("a", "b"):
        path = pytester.path / "tests" / "unit" / folder
        path.mkdir(parents=True)
        (path / f"test_{folder}.py").write_text("def test_good(): pass\ndef test_bad(): raise ValueError\n")
    result = pytester.runpytest("--import-mode=importlib", "--junitxml=out.xml", "-p", "no:randomly", "-rx")
    result.assert_outcomes(passed=1, xpassed=1, xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["*quarantined until 2026-12-10: r (1, o)*"])
    text = (pytester.path / "out.xml").read_text()
    assert text.count('name="case" value="held"') == 2
    assert text.count('name="case" value="other"') == 2
    loose = pytester.path / "tests" / "unit" / "test_loose.py"
    loose.write_text("def test_a(): pass\n")
    result = pytester.runpytest("--import-mode=importlib")
    result.stderr.fnmatch_lines(["*tests/unit/test_loose.py::test_a belongs to no case: name its file or folder*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
