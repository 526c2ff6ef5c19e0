"""Kinds of text that several files of the matrix hold."""

import datetime as dt
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

SchemaVersion = Literal[1]


def _day(value: Any) -> Any:
    return dt.date.fromisoformat(value) if isinstance(value, str) else value


def _duration(text: str) -> str:
    if not re.fullmatch(r"\d{1,3}:[0-5]\d:[0-5]\d", text):
        raise ValueError("not hours:minutes:seconds")
    return text


def _sbatch_value(text: str) -> str:
    # sbatch reads these lines itself, not a shell: what is left out here cannot start a second option or a comment.
    if not re.fullmatch(r"[A-Za-z0-9_.:,=@/%+()\[\]&|*-]+", text):
        raise ValueError("not one word of letters, digits and _.:,=@/%+()[]&|*-")
    return text


Day = Annotated[dt.date, BeforeValidator(_day)]
Duration = Annotated[str, AfterValidator(_duration)]
SbatchValue = Annotated[str, AfterValidator(_sbatch_value)]


def seconds_of(duration: str) -> int:
    """Seconds of hours:minutes:seconds."""
    hours, minutes, seconds = map(int, duration.split(":"))
    return 3600 * hours + 60 * minutes + seconds
