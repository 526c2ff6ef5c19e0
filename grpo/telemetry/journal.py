"""JSON on disk that survives a kill at any instant: whole-file replacement and append-only lines."""

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from grpo.errors import TelemetryError

SCHEMA_VERSION = 1
# JSON has no number for these, and null would read as "not measured".
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SECONDS_BETWEEN_SYNCS = 10.0


def to_json(value: Any) -> Any:
    """A JSON value in which floats that JSON cannot hold are the strings "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def to_float(value: Any) -> Any:
    """The inverse of `to_json` for one value of a metrics line; anything else passes through."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def disk_error(error: OSError, path: Path) -> TelemetryError:
    """What the user reads when the run directory cannot be written."""
    return TelemetryError(
        f"cannot write {path}: {error.strerror or error}. What was written before stays readable; free or remount the "
        "disk, or choose another folder with logger.log_dir"
    )


def replace_text(path: Path, text: str) -> None:
    """Write the file whole or not at all: a reader sees the old text or the new one.

    Raises TelemetryError naming the path when the disk is full or read-only.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            temporary.unlink(missing_ok=True)
        raise disk_error(error, path) from error


def replace_json(path: Path, value: Mapping[str, Any]) -> None:
    """`replace_text` of an object, with `schema_version` first."""
    content = {"schema_version": SCHEMA_VERSION, **to_json(value)}
    replace_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


class JournalWriter:
    """Appends objects to a file of JSON lines, one system call each, so that a kill tears the last line at most.

    Raises TelemetryError naming the path when the disk is full or read-only; a half-written line is taken back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise disk_error(error, path) from error
        self._synced = time.monotonic()
        self._closed = False

    def append(self, record: Mapping[str, Any]) -> None:
        line = {"schema_version": SCHEMA_VERSION, **to_json(record)}
        data = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode()
        size = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):
                # A full disk takes what fits; asking for the rest names the reason.
                os.write(self._descriptor, data[written:])
            if time.monotonic() - self._synced > _SECONDS_BETWEEN_SYNCS:
                self._sync()
        except OSError as error:
            with contextlib.suppress(OSError):  # as above; a reader leaves a torn line out
                os.ftruncate(self._descriptor, size)
            raise disk_error(error, self.path) from error

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced = time.monotonic()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise disk_error(error, self.path) from error
        finally:
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; [] when there is no file. A last line without its newline is left out.

    Raises TelemetryError naming file and line when a whole line is not an object, or is of a newer schema.
    """
    if not path.is_file():
        return []
    records: list[dict[str, Any]] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise TelemetryError(f"{path}:{number}: not a JSON object ({error})") from error
        if not isinstance(record, dict):
            raise TelemetryError(f"{path}:{number}: not a JSON object but {type(record).__name__}")
        check_schema_version(record, f"{path}:{number}")
        record.pop("schema_version")
        records.append(record)
    return records


def check_schema_version(record: Mapping[str, Any], place: str) -> None:
    """Raise TelemetryError unless this version of grpo can read the record."""
    version = record.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise TelemetryError(f"{place}: schema_version is {version!r}; valid: an integer up to {SCHEMA_VERSION}")
    if version > SCHEMA_VERSION:
        raise TelemetryError(
            f"{place}: written with schema_version {version}, newer than {SCHEMA_VERSION}, the newest that this grpo "
            "reads; update grpo"
        )


def set_torn_aside(path: Path) -> None:
    """Move a torn last line from `x.jsonl` to `x.discarded.jsonl`: what is appended would become a part of it."""
    content = path.read_bytes() if path.is_file() else b""
    whole, newline, torn = content.rpartition(b"\n")
    if torn:
        with JournalWriter(path.with_name(f"{path.stem}.discarded.jsonl")) as discarded:
            discarded.append({"torn": torn.decode(errors="replace")})
        os.truncate(path, len(whole) + len(newline))


def set_aside(path: Path, *, after_step: int) -> int:
    """Move the records of later steps, and a torn last line, from `x.jsonl` to `x.discarded.jsonl`.

    Returns how many lines left the file. The discarded lines are on disk before the file is replaced: a kill in between
    loses nothing.
    """
    records = read_journal(path)
    if not path.is_file():
        return 0
    *lines, torn = path.read_text(encoding="utf-8", errors="replace").split("\n")
    whole = [line for line in lines if line.strip()]
    later = [record["step"] > after_step for record in records]
    kept = [line for line, is_later in zip(whole, later, strict=True) if not is_later]
    removed = [record for record, is_later in zip(records, later, strict=True) if is_later]
    if torn:
        removed.append({"torn": torn})
    if not removed:
        return 0
    with JournalWriter(path.with_name(f"{path.stem}.discarded.jsonl")) as discarded:
        for record in removed:
            discarded.append(record)
    replace_text(path, "".join(f"{line}\n" for line in kept))
    return len(removed)
