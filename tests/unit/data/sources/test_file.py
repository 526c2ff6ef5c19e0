import pytest

from grpo.data.sources.file import file_records
from grpo.errors import DataError


def read(path):
    return list(file_records(str(path), key="data.train"))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "d.jsonl"


def test_lines_are_counted_from_one_and_blank_ones_are_skipped(file):
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n   \n{"a": "\xc3\xa9"}')
    assert read(file) == [(f"{file}:1", {"a": 1}), (f"{file}:4", {"a": "é"})]


def test_empty_file_has_no_records(file):
    file.write_text("\n\n")
    assert read(file) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{'a': 1}", r":2: not JSON: Expecting property name.* at column 2"),
        (b'{"a": 1', r":2: not JSON: .*"),
        (b"[", r":2: not JSON: .*one JSON object a line"),
        (b"[1]", r":2: the line holds a JSON array; wanted: an object"),
        (b"null", r":2: the line holds a JSON null"),
        (b'"x"', r":2: the line holds a JSON string"),
        (b'{"a": "\xff"}', r":2: not UTF-8"),
        (b"[" * 100_000, r":2: not JSON that can be read: it is nested too deeply"),
    ],
)
def test_bad_line_is_named(file, line, message):
    file.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(DataError, match=message):
        read(file)


def test_file_that_cannot_be_used(tmp_path):
    with pytest.raises(DataError, match=r"data.train.data_path=.*absent.jsonl: there is no such file"):
        read(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="this is a folder"):
        read(tmp_path)
    (tmp_path / "d.xlsx").touch()
    with pytest.raises(DataError, match=r"suffix '.xlsx' is unknown; valid: .jsonl, .ndjson, .json, .parquet"):
        read(tmp_path / "d.xlsx")


def test_only_what_is_asked_for_is_read(file):
    file.write_text('{"a": 1}\nbroken\n')
    assert next(file_records(str(file), key="k"))[1] == {"a": 1}
