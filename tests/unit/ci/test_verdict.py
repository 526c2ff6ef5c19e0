"""The last word of the gate: nothing that did not run counts as passed."""

import json

import pytest

from ci.verdict import main, problems

XFAIL = '<skipped type="pytest.xfail" message="quarantined until 2026-12-10"/>'
GOOD = {"lint": {"result": "success"}, "unit": {"result": "success"}}


def junit(*tests):
    inner = "".join(
        f'<testcase classname="t" name="{name}"><properties><property name="case" value="{case}"/></properties>{more}'
        "</testcase>"
        for name, case, more in tests
    )
    return f"<testsuites><testsuite>{inner}</testsuite></testsuites>"


@pytest.fixture
def reports(tmp_path):
    """Of a gate that is open: one job of unit tests, two shards, one of them without work."""
    write(tmp_path, "unit-3.12/unit.xml", junit(("a", "unit-data", "")))
    write(
        tmp_path,
        "functional-1/selected.json",
        json.dumps({"selected": ["trainer", "tiny-hf"], "cases": ["trainer", "tiny-hf"]}),
    )
    write(
        tmp_path,
        "functional-1/functional.xml",
        junit(("b", "trainer", ""), ("c", "tiny-hf", XFAIL), ("d", "trainer", "<skipped/>")),
    )
    write(tmp_path, "functional-2/selected.json", json.dumps({"selected": ["tiny-hf", "trainer"], "cases": []}))
    return tmp_path


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def found(reports, needs=GOOD):
    return problems(needs, reports, ["unit-3.12"], 2)


def test_it_opens_when_everything_ran_and_passed(reports):
    assert found(reports) == []
    assert found(reports, needs=None) == []


@pytest.mark.parametrize("result", ["failure", "cancelled", "skipped", "", None])
def test_a_job_that_did_not_succeed_shuts_it(reports, result):
    assert found(reports, {**GOOD, "unit": {"result": result}}) == [f"job unit: {result or 'no result'}"]


def test_no_jobs_at_all_shut_it(reports):
    assert found(reports, {}) == ["no job ran before the gate"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("unit-3.12/unit.xml", None, "unit-3.12: no report"),
        ("unit-3.12/unit.xml", junit(), "unit-3.12: unit.xml has no tests"),
        ("unit-3.12/unit.xml", "<testsuites>", "cannot be read"),
        ("unit-3.12/unit.xml", junit(("a", "unit-data", "<failure/>")), "unit-3.12: t::a failed"),
        ("unit-3.12/unit.xml", junit(("a", "unit-data", "<error/>")), "unit-3.12: t::a failed"),
        ("functional-1/selected.json", None, "functional-1: it did not say what it ran"),
        ("functional-2/selected.json", "{}", "functional-2: it did not say what it ran"),
        ("functional-1/functional.xml", None, "functional-1: no report"),
        ("functional-1/functional.xml", junit(("b", "trainer", "")), "no test of tiny-hf was run"),
        (
            "functional-1/functional.xml",
            junit(("b", "trainer", ""), ("c", "tiny-hf", "<skipped/>")),
            "no test of tiny-hf was run",
        ),
        ("functional-2/selected.json", json.dumps({"selected": ["trainer"], "cases": []}), "the shards do not agree"),
    ],
)
def test_what_is_missing_empty_or_failed_shuts_it(reports, name, text, problem):
    if text is None:
        (reports / name).unlink()
    else:
        (reports / name).write_text(text)
    assert any(problem in one for one in found(reports)), found(reports)


def test_an_empty_selection_shuts_it(reports):
    for shard in (1, 2):
        write(reports, f"functional-{shard}/selected.json", json.dumps({"selected": [], "cases": []}))
    assert "no case of the functional layer is selected" in found(reports)


def test_the_command_line(reports, monkeypatch, capsys):
    monkeypatch.delenv("NEEDS", raising=False)
    given = ["--reports", str(reports), "--expect", "unit-3.12", "--shards", "2"]
    assert main(given) == 0
    assert main([*given, "--results", "lint=passed", "unit=success"]) == 0
    assert main([*given, "--results", "lint=passed", "unit=hard_failed"]) == 1
    assert "gate: job unit: hard_failed" in capsys.readouterr().err
    assert main([*given, "--passed", "lint"]) == 1
    write(reports, "lint/passed", "")
    assert main([*given, "--passed", "lint"]) == 0
    monkeypatch.setenv("NEEDS", json.dumps({"lint": {"result": "cancelled"}}))
    assert main(given) == 1
    monkeypatch.setenv("NEEDS", "")
    with pytest.raises(ValueError, match="Expecting value"):
        main(given)
