"""Records that a function of the user returns."""

from collections.abc import Iterator, Mapping
from typing import Any

from grpo.data.sources.record import numbered
from grpo.errors import DataError
from grpo.imports import import_function


def function_records(name: str, kwargs: Mapping[str, Any], *, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, record) pairs of what `module:function(**kwargs)` returns.

    Raises DataError when it cannot be imported, raises, or returns anything but a non-empty list of dicts.
    """
    function = import_function(name, key=f"{key}.function", error=DataError)
    try:
        records = function(**kwargs)
    except DataError as error:
        raise DataError(f"{key}.function: {error}") from error
    except Exception as error:
        raise DataError(
            f"{key}.function: {name}({_arguments(kwargs)}) raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(records, list):
        raise DataError(f"{key}.function: {name} returned {type(records).__name__}; wanted: a list of dicts")
    if not records:
        raise DataError(f"{key}.function: {name} returned an empty list; wanted: at least one record")
    for index, record in enumerate(records):
        if not isinstance(record, dict):
            raise DataError(f"{name}:{index}: the record is {type(record).__name__}; wanted: a dict")
    return numbered(records, name)


def _arguments(kwargs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
