"""Records of a JSONL or Parquet file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.errors import DataError

Records = Iterator[tuple[str, dict[str, Any]]]
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet",)


def file_records(data_path: str, *, key: str) -> Records:
    """(name, record) pairs; the name is path and line (from 1) in JSONL, path and row (from 0) in Parquet.

    Raises DataError for a file that is missing, empty, of another kind, or not what its suffix says, with the line.
    """
    path = Path(data_path).expanduser()
    where = f"{key}.data_path={data_path}"
    if not path.exists():
        raise DataError(f"{where}: there is no such file (looked for at {path.absolute()})")
    if path.is_dir():
        raise DataError(
            f"{where}: this is a folder; name one file, or use kind: hub with dataset_name for a folder of files"
        )
    if path.suffix in _PARQUET:
        return _parquet(path, data_path, where)
    if path.suffix in _JSON_LINES:
        return _json_lines(path, data_path, where)
    raise DataError(f"{where}: suffix {path.suffix!r} is unknown; valid: {', '.join(_JSON_LINES + _PARQUET)}")


def _json_lines(path: Path, name: str, where: str) -> Records:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{name}:{number}", _json_object(line, f"{name}:{number}", first=number == 1)
    except OSError as error:
        raise DataError(f"{where}: the file cannot be read: {error}") from error


def _json_object(line: bytes, where: str, *, first: bool) -> dict[str, Any]:
    try:
        text = line.decode("utf-8-sig" if first else "utf-8")
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        hint = "; one JSON object a line is wanted, not one array" if text.strip().startswith("[") else ""
        raise DataError(f"{where}: not JSON: {error.msg} at column {error.colno}{hint}") from error
    except RecursionError as error:
        raise DataError(f"{where}: not JSON that can be read: it is nested too deeply") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: the line holds a JSON {_JSON_NAMES.get(type(value), 'null')}; wanted: an object, "
                        'such as {"prompt": "1+1=", "answer": "2"}')  # fmt: skip
    return value


_JSON_NAMES = {list: "array", str: "string", int: "number", float: "number", bool: "boolean"}


def _parquet(path: Path, name: str, where: str) -> Records:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{where}: Parquet files need pyarrow: pip install 'grpo-matrix[data]'") from error
    try:
        row = 0
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                for record in batch.to_pylist():
                    yield f"{name}:{row}", record
                    row += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{where}: not a Parquet file that can be read: {error}") from error
