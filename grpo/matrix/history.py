"""Verdicts over time: a CSV file that is only appended to, one row a verdict and metric."""

import csv
import datetime as dt
import fcntl
import io
import json
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from grpo.errors import MatrixError
from grpo.matrix.load import Matrix

HISTORY = Path("runs/history.csv")
SECONDS = "tests/seconds"  # of a suite: what its tests took together
OUTCOMES = ("pass", "fail", "faster", "not judged")


@dataclass(frozen=True)
class Row:
    """One figure of one verdict. A verdict without figures has one row whose metric is empty."""

    time: str  # ISO 8601, UTC, to the second
    case: str
    partition: str
    stack: str
    commit: str
    run: str
    outcome: str
    failure: str = ""
    metric: str = ""
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    unit: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Of the verdict, which several rows may share."""
        return self.time, self.case, self.partition


@dataclass(frozen=True)
class About:
    """What all rows of one record share."""

    time: str
    stack: str
    commit: str

    @classmethod
    def now(cls, stack: str, commit: str) -> "About":
        return cls(dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), stack, commit)


COLUMNS = tuple(field.name for field in fields(Row))
_NUMBERS = ("value", "lower", "upper")


def verdict_rows(verdict: Mapping[str, Any], about: About) -> list[Row]:
    """Rows of a verdict as `grpo judge --format json` prints it. Raises MatrixError for anything else."""
    try:
        outcome, failure = str(verdict["outcome"]), verdict["failure"]
        common: dict[str, Any] = {
            "time": about.time, "case": str(verdict["case"]), "partition": str(verdict["partition"]),
            "stack": about.stack, "commit": about.commit, "run": str(verdict["run"] or ""), "outcome": outcome,
            "failure": str(failure or ""),
        }  # fmt: skip
        figures = {
            str(one["metric"]): (one["value"], one["lower"], one["upper"], str(one.get("unit", "")))
            for kind in ("bounds", "comparisons")
            for one in _list(verdict[kind])
            if isinstance(one["value"], int | float)
        }
        for metric, value in verdict.get("values", {}).items():
            figures.setdefault(metric, (value, None, None, "s" if metric.startswith("timing/") else ""))
        for share in _list(verdict["attribution"]):
            figures.setdefault(f"timing/{share['phase']}", (share["value"], None, None, "s"))
    except (KeyError, TypeError, AttributeError) as error:
        raise MatrixError(f"not a verdict as `grpo judge --format json` prints it ({error!r})") from None
    if outcome not in OUTCOMES:
        raise MatrixError(f"outcome {outcome!r}: expected one of {', '.join(OUTCOMES)}")
    if not figures:
        return [Row(**common)]
    return [
        Row(**common, metric=metric, value=value, lower=lower, upper=upper, unit=unit)
        for metric, (value, lower, upper, unit) in figures.items()
    ]


def _list(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list, not {value!r}")
    return list(value)


@dataclass(frozen=True)
class TestTime:
    """One test of a JUnit file."""

    __test__ = False

    case: str
    name: str
    seconds: float
    outcome: str  # passed, failed, skipped


def read_junit(path: Path) -> list[TestTime]:
    """Every test with the case that it is of; tests of no case are left out. Raises MatrixError."""
    try:
        root = ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314 - written by our own pytest
    except (OSError, ET.ParseError) as error:
        raise MatrixError(f"{path}: not a JUnit file ({error})") from None
    found = []
    for test in root.iter("testcase"):
        owner = test.find("properties/property[@name='case']")
        if owner is None:
            continue
        failed = test.find("failure") is not None or test.find("error") is not None
        outcome = "failed" if failed else "skipped" if test.find("skipped") is not None else "passed"
        name = f"{test.get('classname', '')}::{test.get('name', '')}"
        found.append(TestTime(owner.get("value", ""), name, float(test.get("time", "0")), outcome))
    return found


def _by_case(tests: Iterable[TestTime]) -> dict[str, list[TestTime]]:
    found: dict[str, list[TestTime]] = {}
    for test in tests:
        found.setdefault(test.case, []).append(test)
    return found


def suite_rows(tests: Iterable[TestTime], partition: str, about: About, failed: Container[str] = ()) -> list[Row]:
    """One row a case: it fails with any of its tests, and is not judged where all were skipped.

    `failed`: cases that fail whatever these tests did, since they ran elsewhere as well.
    """
    rows = []
    for case, own in _by_case(tests).items():
        outcomes = {test.outcome for test in own}
        outcome = "fail" if "failed" in outcomes or case in failed else "pass" if "passed" in outcomes else "not judged"
        seconds = sum(test.seconds for test in own)
        rows.append(Row(about.time, case, partition, about.stack, about.commit, "", outcome,
                        "correctness" if outcome == "fail" else "", SECONDS, seconds, unit="s"))  # fmt: skip
    return rows


def rows_of_paths(
    paths: Iterable[Path], matrix: Matrix, *, stack: str | None, partition: str, commit: str
) -> list[Row]:
    """Rows of verdicts (`*.json`) and JUnit files (`*.xml`), given as files or as folders that hold them.

    A folder may hold other JSON files; a file that is named must be a verdict. A path that is not there has no rows:
    its job may have failed before. A suite that failed in one of the files, on one version of Python say, failed: which
    file comes last is chance. Raises MatrixError.
    """
    rows: list[Row] = []
    suites: list[tuple[str, list[TestTime]]] = []
    seen: set[tuple[str, str, str]] = set()  # a job's folder holds the verdict of its run again
    for path in paths:
        inside = sorted(one for one in path.rglob("*") if one.suffix in (".json", ".xml"))
        for file in inside if path.is_dir() else [path] if path.is_file() else []:
            if file.suffix == ".xml":
                suites += _by_case(read_junit(file)).items()
                continue
            verdict = _read_verdict(file, must=not path.is_dir())
            if verdict is None or (verdict.get("run") and _key_of(verdict) in seen):
                continue
            seen.add(_key_of(verdict))
            of_stack = stack or matrix.any_case(str(verdict["case"])).stacks[0]
            rows += verdict_rows(verdict, About.now(of_stack, commit))
    failed = {case for case, tests in suites if any(test.outcome == "failed" for test in tests)}
    for case, tests in suites:
        of_stack = stack or matrix.any_case(case).stacks[0]
        rows += suite_rows(tests, partition, About.now(of_stack, commit), failed)
    return rows


def unknown_rows(rows: Sequence[Row], known: Iterable[Row]) -> list[Row]:
    """Without the verdicts of runs that are in the history already, with the same outcome. Suites have no run."""
    there = {(row.case, row.partition, row.run, row.outcome) for row in known if row.run}
    return [row for row in rows if (row.case, row.partition, row.run, row.outcome) not in there]


def _key_of(verdict: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(verdict["case"]), str(verdict.get("partition")), str(verdict.get("run"))


def _read_verdict(file: Path, *, must: bool) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise MatrixError(f"{file}: not JSON ({error})") from None
    if isinstance(content, dict) and {"case", "outcome"} <= content.keys():
        return content
    if must:
        raise MatrixError(f"{file}: not a verdict as `grpo judge --format json` prints it")
    return None


def append(path: Path, rows: Sequence[Row]) -> None:
    """Append whole rows; several processes may do so at once."""
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    with path.open("a", encoding="utf-8", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.seek(0, os.SEEK_END) == 0:
            writer.writeheader()
        writer.writerows({name: "" if value is None else value for name, value in asdict(row).items()} for row in rows)
        file.write(text.getvalue())
        file.flush()
        os.fsync(file.fileno())


def read_history(path: Path) -> list[Row]:
    """Every row, oldest first as they stand; none where there is no file. Raises MatrixError naming file and line."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise MatrixError(f"{path}:1: expected the columns {','.join(COLUMNS)}")
        rows = []
        for record in reader:
            try:
                numbers = {name: float(record[name]) if record[name] else None for name in _NUMBERS}
                values: dict[str, Any] = {**record, **numbers}
                rows.append(Row(**values))
            except (TypeError, ValueError) as error:
                raise MatrixError(f"{path}:{reader.line_num}: {error}") from None
    return rows


def last_verdicts(rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """The latest row of each case and partition."""
    latest: dict[tuple[str, str], Row] = {}
    for row in rows:
        place = row.case, row.partition
        if place not in latest or row.time >= latest[place].time:
            latest[place] = row
    return latest


def series(rows: Iterable[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """Rows with a value by case, partition and metric, oldest first."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda one: one.time):
        if row.value is not None:
            found.setdefault((row.case, row.partition, row.metric), []).append(row)
    return found
