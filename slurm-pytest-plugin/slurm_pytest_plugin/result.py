"""`result.json`: what a job says of itself. The script writes it last, whole or not at all."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_pytest_plugin.failure_names import FAILURES, FailureClass

RESULT = "result.json"
DONE = "done"
SETUP = "setup"


class ResultError(ValueError):
    """A result file that is not what it should be."""


@dataclass(frozen=True)
class Result:
    """What is in the file.

    Attributes:
        exit_code: of what the job is for; None where the job ended before that did.
        stage: where the job was: "setup" (before what it is for), "done", or a word of the script's own.
        stopped_by: the signal that stopped it: "USR1" before the time limit, "TERM".
        failure: a class of failure that the script knows better than its exit code tells, for example "infra".
        exclude: nodes that the script found at fault.
    """

    exit_code: int | None
    stage: str = DONE
    stopped_by: str | None = None
    failure: FailureClass | None = None
    exclude: tuple[str, ...] = ()


def read_result(folder: Path) -> Result | None:
    """The result of the job in this folder; None where it wrote none. Raises ResultError naming the file and key."""
    path = folder / RESULT
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(f"{path}: cannot be read: {error}") from error
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ResultError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ResultError(f"{path}: not a JSON object")
    return _checked(path, value)


def _checked(path: Path, value: dict[str, Any]) -> Result:
    exit_code, stage = value.get("exit_code"), value.get("stage", DONE)
    stopped_by, failure, exclude = value.get("stopped_by"), value.get("failure"), value.get("exclude", [])
    problems = [
        (not isinstance(exit_code, int | None) or isinstance(exit_code, bool), "exit_code", "a whole number or null"),
        (not isinstance(stage, str), "stage", "a word"),
        (not isinstance(stopped_by, str | None), "stopped_by", "a signal's name or null"),
        (failure is not None and failure not in FAILURES, "failure", f"null or one of {', '.join(FAILURES)}"),
        (
            not isinstance(exclude, list) or not all(isinstance(node, str) for node in exclude),
            "exclude",
            "a list of node names",
        ),
    ]
    for wrong, key, expected in problems:
        if wrong:
            raise ResultError(f"{path}: {key} = {value.get(key)!r}: expected {expected}")
    return Result(exit_code, stage, stopped_by, failure, tuple(exclude))
