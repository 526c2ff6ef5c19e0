"""`grpo matrix` as a user runs it."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo.cli import app
from grpo.matrix.judge import JobOutcome

ROOT = Path(__file__).parents[3]
MATRICES = str(ROOT / "matrices")


def run(*arguments):
    return CliRunner().invoke(app, ["matrix", *arguments])


def ok(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_select_takes_files_and_explains():
    args = ("select", "--changed", "README.md", "docs/index.md", "--layer", "functional", "--matrices", MATRICES)
    assert ok(*args).split() == ["tiny-hf"]
    told = ok(*args, "--explain").splitlines()
    assert "run  tiny-hf: paths: README.md" in told
    assert "skip engines: nothing of it changed" in told
    assert str(run("select", "--matrices", MATRICES).exception).startswith("what has changed?")
    nightly = ok("select", "--base", "no-such-branch", "--cadence", "nightly", "--matrices", MATRICES).split()
    assert "tiny-objective-gspo-rloo" in nightly
    assert "tiny-hf" not in nightly


def test_the_arguments_of_tests_are_json():
    assert json.loads(ok("tests", "unit", "unit-refit", "--matrices", MATRICES)) == ["tests/unit/refit"]
    assert "no case 'unit-refut'" in str(run("tests", "unit", "unit-refut", "--matrices", MATRICES).exception)


def test_what_is_recorded_is_listed_and_drawn(tmp_path):
    junit = tmp_path / "unit.xml"
    junit.write_text(
        '<testsuite><testcase classname="a" name="b" time="1"><properties><property name="case" value="unit-data"/>'
        "</properties></testcase></testsuite>"
    )
    history = str(tmp_path / "history.csv")
    assert "1 rows of 1 verdicts" in ok("record", str(junit), "--history", history, "--matrices", MATRICES)
    (line,) = [
        one for one in ok("list", "--history", history, "--matrices", MATRICES).splitlines() if "unit-data" in one
    ]
    assert "pass 20" in line
    out = tmp_path / "out"
    ok("report", "--output", str(out), "--reports", str(tmp_path), "--history", history, "--matrices", MATRICES)
    assert "a::b" in (out / "matrix.html").read_text()
    assert "unit-data" in (out / "matrix.md").read_text()


def test_a_suite_is_explained():
    text = ok("explain", "unit-refit", "--matrices", MATRICES)
    assert "nox -s unit -- unit-refit" in text
    assert "tests: pytest tests/unit/refit" in text


def test_run_says_what_is_missing_and_keeps_a_verdict_without_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo.matrix.here._wait", lambda process, limit: (process.kill(), process.wait(), CRASHED)[-1])
    history = str(tmp_path / "history.csv")
    result = run("run", "tiny-hf", "--folder", str(tmp_path / "f"), "--history", history, "--matrices", MATRICES)
    assert result.exit_code == 1
    (line,) = [one for one in ok("list", "--history", history, "--matrices", MATRICES).splitlines() if "tiny-hf" in one]
    assert "fail 20" in line
    assert json.loads((tmp_path / "f" / "verdict.json").read_text())["failure"] == "crash"
    assert "name one with --partition" in str(run("run", "8b-dtensor", "--matrices", MATRICES).exception)


def test_a_quarantined_case_runs_and_does_not_gate(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo.matrix.here._wait", lambda process, limit: (process.kill(), process.wait(), CRASHED)[-1])
    matrices = tmp_path / "matrices"
    shutil.copytree(MATRICES, matrices)
    (matrices / "quarantine.yaml").write_text(
        "schema_version: 1\ncases:\n"
        "  tiny-hf: {reason: flickers, issue: '#7', owner: me, since: 2026-11-30, until: 2026-12-05}\n"
    )
    folder, history = tmp_path / "f", tmp_path / "history.csv"
    result = run("run", "tiny-hf", "--folder", str(folder), "--history", str(history), "--matrices", str(matrices))
    assert result.exit_code == 0
    assert "tiny-hf does not gate: quarantined until 2026-12-05: flickers (#7, me)" in result.output
    assert json.loads((folder / "verdict.json").read_text())["failure"] == "crash"


CRASHED = JobOutcome("FAILED", 1, "trainer")


@pytest.mark.parametrize("command", ["list", "explain", "select", "record", "report", "run", "schema", "tests"])
def test_every_command_says_what_it_does(command):
    assert len(ok(command, "--help")) > 100
