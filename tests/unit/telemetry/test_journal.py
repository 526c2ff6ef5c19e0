import json
import math
import subprocess
import sys

import pytest

from grpo.errors import TelemetryError
from grpo.telemetry.journal import (
    JournalWriter,
    read_journal,
    replace_json,
    replace_text,
    set_aside,
    set_torn_aside,
    to_float,
    to_json,
)


def write(path, *records):
    with JournalWriter(path) as journal:
        for record in records:
            journal.append(record)


def test_a_line_is_on_disk_when_append_returns(tmp_path):
    journal = JournalWriter(tmp_path / "m.jsonl")
    journal.append({"step": 1, "x": 0.5})
    assert (tmp_path / "m.jsonl").read_text() == '{"schema_version": 1, "step": 1, "x": 0.5}\n'
    journal.close()


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_floats_without_json_come_back(tmp_path, value, text):
    path = tmp_path / "m.jsonl"
    write(path, {"step": 1, "x": value, "nested": [{"y": value}]})
    record = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert record["x"] == text
    assert record["nested"] == [{"y": text}]
    (read,) = read_journal(path)
    assert to_float(read["x"]) == pytest.approx(value, nan_ok=True)
    assert to_float("a text") == "a text"
    assert to_json(1.5) == 1.5


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, {"step": 1}, {"step": 2})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert [record["step"] for record in read_journal(path)] == [1, 2][: whole[:length].count(b"\n")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", r"m\.jsonl:2: not a JSON object"),
        ("[1]", r"m\.jsonl:2: not a JSON object but list"),
        ('{"step": 2}', r"m\.jsonl:2: schema_version is None"),
        ('{"schema_version": 2}', r"m\.jsonl:2: written with schema_version 2, newer than 1.*update grpo"),
        ('{"schema_version": true}', r"schema_version is True"),
    ],
)
def test_a_whole_line_that_is_wrong_is_named(tmp_path, line, message):
    path = tmp_path / "m.jsonl"
    write(path, {"step": 1})
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(TelemetryError, match=message):
        read_journal(path)


def test_later_steps_are_set_aside_and_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, *({"step": step, "x": math.nan} for step in range(1, 6)))
    before = path.read_text().splitlines()
    path.write_text(path.read_text() + '{"schema_ver')
    assert set_aside(path, after_step=3) == 3
    assert path.read_text().splitlines() == before[:3]
    discarded = read_journal(tmp_path / "metrics.discarded.jsonl")
    assert [record.get("step", record.get("torn")) for record in discarded] == [4, 5, '{"schema_ver']
    assert set_aside(path, after_step=3) == 0
    assert set_aside(tmp_path / "absent.jsonl", after_step=3) == 0


def test_a_replaced_file_is_whole_and_leaves_no_other(tmp_path):
    replace_json(tmp_path / "a.json", {"x": math.inf})
    replace_json(tmp_path / "a.json", {"x": "é"})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"schema_version": 1, "x": "é"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for act in (lambda path: replace_text(path, "x"), JournalWriter):
        with pytest.raises(TelemetryError, match=r"cannot write .*file/a\.json.*logger\.log_dir"):
            act(tmp_path / "file" / "a.json")


FULL_DISK = """
import resource, sys
from pathlib import Path
from grpo.errors import TelemetryError
from grpo.telemetry.journal import JournalWriter, replace_text
journal = JournalWriter(Path(sys.argv[1]) / "m.jsonl")
other = Path(sys.argv[1]) / "other.json"
replace_text(other, "old")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for act in (lambda: [journal.append({"step": step}) for step in range(100)], lambda: replace_text(other, "x" * 2000)):
    try:
        act()
    except TelemetryError as error:
        print(error)
"""


def test_a_full_disk_is_named_and_what_was_written_stays_readable(tmp_path):
    run = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    first, second = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert first.startswith(f"cannot write {tmp_path / 'm.jsonl'}: File too large.")
    assert second.startswith(f"cannot write {tmp_path / 'other.json'}: ")
    steps = [record["step"] for record in read_journal(tmp_path / "m.jsonl")]
    assert steps == list(range(len(steps)))
    assert len(steps) > 20
    assert (tmp_path / "m.jsonl").read_bytes().endswith(b"}\n")
    assert (tmp_path / "other.json").read_text() == "old"
    assert not (tmp_path / "other.json.tmp").exists()


def test_what_is_appended_after_a_kill_is_no_part_of_the_torn_line(tmp_path):
    path = tmp_path / "events.jsonl"
    set_torn_aside(path)
    write(path, {"kind": "started"}, {"kind": "checkpoint"})
    set_torn_aside(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "chec\xff')
    set_torn_aside(path)
    assert path.read_bytes() == whole
    write(path, {"kind": "resumed"})
    assert [record["kind"] for record in read_journal(path)] == ["started", "checkpoint", "resumed"]
    (torn,) = read_journal(tmp_path / "events.discarded.jsonl")
    assert torn["torn"].startswith('{"kind": "chec')
    path.write_bytes(b"torn")
    set_torn_aside(path)
    assert path.read_bytes() == b""
