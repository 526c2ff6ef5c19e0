"""The required check's last word, with Python's standard library alone: did everything run, and did it pass?

A job that was cancelled, skipped or lost, a shard without its tests, and a case that no shard ran are failures alike.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

SELECTION = "selected.json"


def problems(needs: Mapping[str, Any] | None, reports: Path, expected: Sequence[str], shards: int) -> list[str]:
    """What keeps the gate shut; nothing where it is open.

    `needs`: the results of the jobs before, as GitHub says them; None where other signs tell them.
    `reports`: a folder for each of `expected` with its JUnit files, and one for each shard (`functional-1`, ...) with
    `selected.json` besides.
    """
    found = list(_jobs(needs))
    for name in expected:
        found += _report(reports / name)
    found += _shards(reports, shards)
    return found


def _jobs(needs: Mapping[str, Any] | None) -> Iterator[str]:
    if needs is None:
        return
    if not needs:
        yield "no job ran before the gate"
    for name, job in needs.items():
        result = job.get("result") if isinstance(job, dict) else None
        if result != "success":
            yield f"job {name}: {result or 'no result'}"


def _report(folder: Path) -> list[str]:
    files = sorted(folder.glob("*.xml"))
    if not files:
        return [f"{folder.name}: no report, so nothing is known of its tests"]
    return [f"{folder.name}: {problem}" for file in files for problem in _junit(file)[1]]


def _junit(file: Path) -> tuple[set[str], list[str]]:
    """The cases of which the file has a test that ran, and what is wrong with it."""
    try:
        root = ET.fromstring(file.read_text(encoding="utf-8"))  # noqa: S314 - written by our own pytest
    except (OSError, ET.ParseError) as error:
        return set(), [f"{file.name} cannot be read ({error})"]
    tests = list(root.iter("testcase"))
    if not tests:
        return set(), [f"{file.name} has no tests"]
    bad = [test for test in tests if test.find("failure") is not None or test.find("error") is not None]
    words = [f"{test.get('classname')}::{test.get('name')} failed" for test in bad]
    ran = [test for test in tests if not _skipped(test)]
    cases = {one.get("value", "") for test in ran for one in test.iterfind("properties/property[@name='case']")}
    return cases, words


def _skipped(test: ET.Element) -> bool:
    """Whether it did not run; one of a case in quarantine that failed (pytest's xfail) did."""
    skipped = test.find("skipped")
    return skipped is not None and skipped.get("type") != "pytest.xfail"


def _shards(reports: Path, count: int) -> Iterator[str]:
    """Every shard must tell the same selection, and all of it must have been run by some shard."""
    wanted: dict[str, list[str]] = {}
    ran: set[str] = set()
    for name in (f"functional-{number}" for number in range(1, count + 1)):
        try:
            selection = json.loads((reports / name / SELECTION).read_text(encoding="utf-8"))
            wanted[name], mine = list(selection["selected"]), list(selection["cases"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            yield f"{name}: it did not say what it ran ({error!r})"
            continue
        files = sorted((reports / name).glob("*.xml"))
        if mine and not files:
            yield f"{name}: no report, so nothing is known of its tests"
        for file in files:
            cases, words = _junit(file)
            yield from (f"{name}: {word}" for word in words)
            ran |= cases
    if len({json.dumps(sorted(one)) for one in wanted.values()}) > 1:
        yield f"the shards do not agree on what is selected: {wanted}"
    everything = {case for one in wanted.values() for case in one}
    if count and not everything:
        yield "no case of the functional layer is selected"
    missing = sorted(everything - ran)
    if missing:
        yield f"no test of {', '.join(missing)} was run"


def _needs(results: Sequence[str]) -> dict[str, Any] | None:
    """From the command line, or from NEEDS, which is JSON as GitHub writes it."""
    if results:
        ended = dict(one.partition("=")[::2] for one in results)
        return {job: {"result": "success" if result == "passed" else result} for job, result in ended.items()}
    needs = os.environ.get("NEEDS")
    return None if needs is None else dict(json.loads(needs))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", type=Path, required=True, help="a folder with one folder of reports a job")
    parser.add_argument("--expect", nargs="*", default=[], metavar="JOB", help="jobs that must have left a report")
    parser.add_argument(
        "--passed", nargs="*", default=[], metavar="JOB", help="jobs that must have left a file `passed`"
    )
    parser.add_argument(
        "--results", nargs="*", default=[], metavar="JOB=RESULT", help="how jobs ended: success or passed"
    )
    parser.add_argument("--shards", type=int, default=0, help="of the functional layer")
    options = parser.parse_args(arguments)
    found = problems(_needs(options.results), options.reports, options.expect, options.shards)
    found += [f"{job}: it did not pass" for job in options.passed if not (options.reports / job / "passed").is_file()]
    for problem in found:
        print(f"gate: {problem}", file=sys.stderr)
    print("gate: shut" if found else "gate: open")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
