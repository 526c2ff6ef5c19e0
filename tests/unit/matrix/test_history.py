import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.errors import MatrixError
from grpo.matrix.history import (
    COLUMNS,
    About,
    Row,
    append,
    last_verdicts,
    read_history,
    read_junit,
    rows_of_paths,
    series,
    suite_rows,
    unknown_rows,
    verdict_rows,
)
from grpo.matrix.judge import JobOutcome, judge_row, row_of
from grpo.matrix.load import load_matrix
from tests.support.matrix import evidence, measured, unmeasured, verdict

MATRIX = load_matrix(Path(__file__).parents[3] / "matrices")
ABOUT = About("2026-11-30T10:00:00Z", "cuda", "abc")
JUNIT = """<testsuites><testsuite>
<testcase classname="a" name="t1" time="1.5"><properties><property name="case" value="trainer"/></properties></testcase>
<testcase classname="a" name="t2" time="2.5"><properties><property name="case" value="trainer"/></properties>
<failure>x</failure></testcase>
<testcase classname="b" name="t3" time="0.5"><properties><property name="case" value="engines"/></properties></testcase>
<testcase classname="c" name="t4" time="0.1"><properties><property name="case" value="hub-fetch"/></properties>
<skipped/></testcase>
<testcase classname="d" name="of no case" time="9"/>
</testsuite></testsuites>"""


def failed_row():
    row = row_of("total=178,policy_training=31,refit=26,generation=87,logprobs=20")
    case = MATRIX.case("70b-megatron")
    return judge_row(row, case, MATRIX.reference("h100-80g", case.id), partition_name="h100-80g")


def test_a_verdict_is_one_row_a_figure_with_its_band():
    rows = verdict_rows(failed_row().to_json(), ABOUT)
    by_metric = {row.metric: row for row in rows}
    total = by_metric["timing/total"]
    assert (total.value, total.outcome, total.failure, total.unit) == (178.0, "fail", "regression", "s")
    assert total.upper == pytest.approx(161.7)
    assert by_metric["timing/other"].value == 178 - 31 - 26 - 87 - 20
    assert {row.key for row in rows} == {(ABOUT.time, "70b-megatron", "h100-80g")}
    assert len(by_metric) == len(rows)


def test_a_verdict_without_figures_is_one_row():
    crashed = judge_run_that_crashed()
    assert [(row.outcome, row.failure, row.metric, row.value) for row in verdict_rows(crashed, ABOUT)] == [
        ("fail", "crash", "", None)
    ]


def judge_run_that_crashed():
    empty = evidence([], state="failed", job=JobOutcome("FAILED", 1, "trainer"))
    return verdict(empty, reference=measured()).to_json()


def test_a_runs_phases_are_kept_also_without_a_reference():
    rows = verdict_rows(verdict(reference=unmeasured()).to_json(), ABOUT)
    found = {row.metric: row.value for row in rows}
    assert found["timing/generation"] == 84.0
    assert {row.outcome for row in rows} == {"not judged"}


@pytest.mark.parametrize("value", [{}, {"case": "c"}, {**failed_row().to_json(), "outcome": "maybe"}])
def test_what_is_no_verdict(value):
    with pytest.raises(MatrixError, match=r"not a verdict|expected one of pass"):
        verdict_rows(value, ABOUT)


def test_what_is_appended_is_read_back(tmp_path):
    path = tmp_path / "deep" / "history.csv"
    rows = [*verdict_rows(failed_row().to_json(), ABOUT), *verdict_rows(verdict(reference=measured()).to_json(), ABOUT)]
    append(path, rows[:3])
    append(path, [])
    append(path, rows[3:])
    assert read_history(path) == rows
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)
    assert read_history(tmp_path / "none.csv") == []


def test_several_writers_do_not_tear_rows(tmp_path):
    path = tmp_path / "history.csv"
    rows = verdict_rows(failed_row().to_json(), ABOUT)
    threads = [threading.Thread(target=append, args=(path, rows)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_history(path) == rows * 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", r"history.csv:1: expected the columns time,case"),
        (",".join(COLUMNS) + "\n" + "t,c,p,s,k,r,pass,,m,x,,,s\n", r"history.csv:2: could not convert"),
        (",".join(COLUMNS) + "\n" + "t,c\n", r"history.csv:2: "),
    ],
)
def test_a_broken_history_names_the_line(tmp_path, text, message):
    path = tmp_path / "history.csv"
    path.write_text(text)
    if text.endswith("t,c\n"):
        assert read_history(path)[0].value is None
        return
    with pytest.raises(MatrixError, match=message):
        read_history(path)


def test_the_latest_verdict_counts_wherever_it_stands():
    rows = [
        Row("2026-11-02", "a", "p", "s", "", "", "fail"),
        Row("2026-11-03", "a", "p", "s", "", "", "pass"),
        Row("2026-11-01", "a", "p", "s", "", "", "faster", metric="m", value=1.0),
        Row("2026-11-01", "a", "q", "s", "", "", "fail", metric="m", value=2.0),
    ]
    assert {key: row.outcome for key, row in last_verdicts(rows).items()} == {("a", "p"): "pass", ("a", "q"): "fail"}
    assert {key: [row.value for row in points] for key, points in series(rows).items()} == {
        ("a", "p", "m"): [1.0], ("a", "q", "m"): [2.0],
    }  # fmt: skip


def test_a_suite_fails_with_any_of_its_tests(tmp_path):
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT)
    tests = read_junit(path)
    assert [(test.case, test.outcome) for test in tests] == [
        ("trainer", "passed"), ("trainer", "failed"), ("engines", "passed"), ("hub-fetch", "skipped"),
    ]  # fmt: skip
    rows = {row.case: row for row in suite_rows(tests, "cpu-local", ABOUT)}
    assert {case: row.outcome for case, row in rows.items()} == {
        "trainer": "fail", "engines": "pass", "hub-fetch": "not judged",
    }  # fmt: skip
    assert (rows["trainer"].failure, rows["trainer"].value) == ("correctness", 4.0)
    path.write_text("<a>")
    with pytest.raises(MatrixError, match="not a JUnit file"):
        read_junit(path)


def test_a_suite_that_failed_in_one_file_failed_whichever_comes_last(tmp_path):
    (tmp_path / "unit-3.11.xml").write_text(JUNIT)
    (tmp_path / "unit-3.13.xml").write_text(JUNIT.replace("<failure>x</failure>", ""))
    rows = rows_of_paths([tmp_path], MATRIX, stack=None, partition="cpu-local", commit="")
    assert [row.outcome for row in rows if row.case == "trainer"] == ["fail", "fail"]
    assert last_verdicts(rows)["engines", "cpu-local"].outcome == "pass"


def test_a_run_is_in_the_history_once_with_each_outcome():
    rows = verdict_rows(verdict(reference=measured()).to_json(), ABOUT)
    later = [replace(row, time="2026-12-01T10:00:00Z") for row in rows]
    assert rows[0].run
    assert unknown_rows(later, rows) == []
    assert unknown_rows([replace(row, outcome="fail") for row in later], rows) != []
    suites = [replace(row, run="") for row in rows]
    assert unknown_rows(suites, suites) == suites


def test_folders_of_reports(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "junit.xml").write_text(JUNIT)
    (tmp_path / "a" / "selected.json").write_text("{}")
    (tmp_path / "a" / "verdict.json").write_text(json.dumps(failed_row().to_json()))
    found = rows_of_paths([tmp_path, tmp_path / "absent"], MATRIX, stack=None, partition="cpu-local", commit="abc")
    assert {(row.case, row.stack, row.commit) for row in found} == {
        ("trainer", "cpu", "abc"), ("engines", "cpu", "abc"), ("hub-fetch", "cpu", "abc"),
        ("70b-megatron", "cuda", "abc"),
    }  # fmt: skip
    (row, *_) = rows_of_paths([tmp_path / "a" / "junit.xml"], MATRIX, stack="cpu-newest", partition="x", commit="")
    assert (row.stack, row.partition) == ("cpu-newest", "x")
    with pytest.raises(MatrixError, match="not a verdict"):
        rows_of_paths([tmp_path / "a" / "selected.json"], MATRIX, stack=None, partition="x", commit="")
