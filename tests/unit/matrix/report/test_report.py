"""The matrix's page: whole, self-contained, and never taking a text for markup."""

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.errors import TelemetryError
from grpo.matrix.history import TestTime
from grpo.matrix.load import load_matrix
from grpo.matrix.report import write_matrix_report
from grpo.matrix.report.content import gather
from grpo.matrix.report.figures import draw_matrix
from grpo.matrix.schema import Quarantine
from tests.support.html_page import Page
from tests.support.synthetic_history import one, whole_history

ATTACK = "<script>alert(1)</script> <img src=x onerror=alert(1)> | ` {{7*7}}"
NOW = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)
HELD = {"reason": ATTACK, "issue": ATTACK, "owner": ATTACK, "since": "2026-11-10", "until": "2026-12-05"}
MATRIX = replace(
    load_matrix(Path(__file__).parents[4] / "matrices"),
    quarantine=Quarantine.model_validate({"schema_version": 1, "cases": {"engines": HELD}}),
)
TESTS = [TestTime("trainer", f"{ATTACK}[{n}]", float(n), "passed") for n in range(40)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrix") / "deep"
    page, document = write_matrix_report(MATRIX, whole_history(), TESTS, folder, NOW)
    return (
        Page(page.read_text(encoding="utf-8")),
        document.read_text(encoding="utf-8"),
        page.read_text(encoding="utf-8"),
    )


def test_every_section_is_there(written):
    page, document, text = written
    assert page.headings == [
        "The test matrix", "What needs attention", "Cases and partitions", "Quarantine", "Over time", "Slowest tests",
        "Never ran",
    ]  # fmt: skip
    assert page.tags.count("svg") == 6
    for case in MATRIX.all:
        assert f">{case}<" in text
        assert f"| {case} |" in document
    assert text.count("<details") == document.count("<details") - 5  # the layers and the slowest tests are folded there


def test_it_is_self_contained(written):
    page, _, text = written
    assert {"script", "link", "iframe", "img"}.isdisjoint(page.tags)
    links = [value for name, value in page.attributes if name in ("href", "src", "xlink:href", "action")]
    assert [link for link in links if not link.startswith("#")] == []
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert "default-src 'none'" in text


def test_texts_are_never_markup(written):
    page, document, text = written
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert "<script" not in document
    assert "<img" not in document
    assert "{{7*7}}" in text
    rows = [line for line in document.splitlines() if line.startswith("| engines | 2026")]
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 8


def test_every_state_is_said_in_words_and_by_a_colour(written):
    _, _, text = written
    for state, words in {
        "pass": "pass",
        "fail": "fail",
        "faster": "faster",
        "not-judged": "not judged",
        "never": "never ran",
    }.items():
        assert re.search(rf'class="verdict s-{state}"><span class="sign" aria-hidden="true">.</span>{words}<', text)
        assert f".s-{state} {{ color:" in text


def test_what_is_told():
    content = gather(MATRIX, whole_history(), TESTS, NOW)
    assert [(case, partition, cell.words) for case, partition, cell, _ in content.attention] == [
        ("engines", "cpu-local", "fail"), ("8b-megatron", "h100-80g", "faster"), ("70b-megatron", "h100-80g", "fail"),
    ]  # fmt: skip
    assert content.attention[0][3].startswith("quarantined until 2026-12-05")
    assert len(content.slowest) == 15
    assert content.slowest[0] == ("39.0 s", f"{ATTACK}[39]", "trainer")
    assert content.quarantine[0][:4] == ("engines", "2026-11-10", "2026-12-05", "5 days")
    tiles = {tile.label: tile.value for tile in content.tiles}
    assert (tiles["pass"], tiles["fail"], tiles["faster"], tiles["not judged"]) == ("4", "2", "1", "1")
    (cluster,) = [group for group in content.groups if group.layer == "cluster"]
    assert cluster.partitions == ["cpu-local", "h100-80g", "h200-141g"]
    lines = {line.case: [cell.state for cell in line.cells][1:] for line in cluster.lines}
    assert {
        "8b-dtensor": ["pass", "not-judged"], "8b-megatron": ["faster", "never"], "70b-dtensor": ["never", "none"],
        "70b-megatron": ["fail", "none"], "8b-dtensor-random": ["none", "never"],
    }.items() <= lines.items()  # fmt: skip


def test_what_never_ran_is_by_stack_too():
    content = gather(MATRIX, whole_history(), [], NOW)
    assert ("tiny-hf", "cpu-newest", "cpu-local") in content.never
    assert ("tiny-hf", "cpu", "cpu-local") not in content.never
    assert content.combinations == sum(len(case.stacks) * len(case.partitions) for case in MATRIX.all.values())
    late = gather(MATRIX, [], [], dt.datetime(2026, 12, 8, tzinfo=dt.UTC))
    assert late.quarantine[0][3] == "over for 3 days"
    assert len(late.never) == late.combinations


def test_the_pictures_say_what_they_show():
    figures = {figure.name: figure for figure in draw_matrix(whole_history())}
    line, phases = figures["70b-megatron-h100-80g-line"], figures["70b-megatron-h100-80g-phases"]
    assert re.fullmatch(r"total over 30 runs; the last: 1\d\d\.\d s, band 132 \.\. 155, fail", line.note)
    assert "refit 2" in phases.description
    assert "tests/seconds" not in "".join(figure.note for figure in figures.values())
    assert set(figures) == {
        "70b-megatron-h100-80g-line", "70b-megatron-h100-80g-phases", "8b-dtensor-h100-80g-line",
        "8b-dtensor-h100-80g-phases", "8b-megatron-h100-80g-line", "tiny-hf-cpu-local-line",
    }  # fmt: skip
    assert draw_matrix([one("trainer", "pass")]) == []


def test_without_history_the_page_says_so(tmp_path):
    page, document = write_matrix_report(MATRIX, [], [], tmp_path, NOW)
    assert "No figures are recorded yet" in page.read_text()
    assert "Nothing fails." in document.read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(TelemetryError, match="cannot write"):
        write_matrix_report(MATRIX, [], [], tmp_path / "file", NOW)


def test_the_summary(written, snapshot):
    _, document, _ = written
    counted = document[: document.index("<details")]
    assert re.sub(r"\d+ (cases|never ran)", r"N \1", counted) == snapshot  # as many as there are in the matrix
