"""Change points. The library is installed by `nox -s drift`, whose `-- --check` runs what is skipped here."""

import csv

import pytest

from ci.drift import Change, Point, main, read_series, self_check
from grpo.matrix.history import COLUMNS, Row, append


def row(time, value, metric="timing/total", case="c"):
    return Row(time, case, "p", "cuda", "abc", "r", "pass", "", metric, value, None, None, "s")


def test_it_reads_what_the_history_writes(tmp_path):
    path = tmp_path / "history.csv"
    append(path, [row("2026-01-02", 2.0), row("2026-01-01", 1.0), row("2026-01-01", 5.0, "timing/refit")])
    append(path, [Row("2026-01-03", "c", "p", "cuda", "abc", "", "fail")])
    series = read_series(path)
    assert [point.value for point in series["c", "p", "timing/total"]] == [1.0, 2.0]
    assert list(series) == [("c", "p", "timing/total"), ("c", "p", "timing/refit")]
    assert next(csv.reader(path.read_text().splitlines())) == list(COLUMNS)


def test_a_change_says_what_moved_when_and_by_how_much():
    first = Point("2026-11-12T01:00:00Z", "0123456789abcdef", "", 26)
    change = Change("70b", "h100", "timing/refit", first, 14, 26, (20, 8))
    assert change.words == (
        "2026-11-12 70b on h100: timing/refit 14 -> 26 (+85.7 %), first at commit 0123456789ab "
        "(20 values before, 8 after)"
    )


@pytest.mark.parametrize("text", [None, "no,history\n1,2\n", "\xff"])
def test_it_never_blocks(tmp_path, capsys, text):
    path = tmp_path / "history.csv"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    assert main(["--history", str(path)]) == 0
    said = "".join(capsys.readouterr())
    assert "no history at" in said or "cannot be read as a history" in said


def test_known_changes_are_found_and_no_others():
    pytest.importorskip("ruptures", reason="ruptures is in the environment of `nox -s drift` alone")
    assert self_check() == []
