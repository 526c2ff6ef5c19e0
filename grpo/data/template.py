"""Texts with places to fill in: `data.*.prompt_template` and `data.default.prompt_file`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from grpo.errors import DataError

_FIELD = re.compile(r"[^.\[\]{}!:]+(\[[^\[\]]+\])*")


@dataclass(frozen=True)
class RecordTemplate:
    """A parsed prompt template: literal texts, each followed by the path of keys of a value, or by nothing."""

    source: str
    parts: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def parse(cls, source: str, *, key: str) -> "RecordTemplate":
        """Only `{field}` and `{field[key]}` are read, `{{` and `}}` stand for braces. DataError names the key."""
        parts = []
        for literal, field, specification, conversion in _pieces(source, key):
            if field is not None and (specification or conversion or not _FIELD.fullmatch(field)):
                raise DataError(
                    f"{key}: {{{field}}} in {source!r} is not allowed; valid: '{{field}}' and '{{field[key]}}'"
                )
            parts.append((literal, () if field is None else tuple(re.findall(r"[^\[\]]+", field))))
        if not any(path for _, path in parts):
            raise DataError(
                f"{key}: {source!r} has no field, so that every prompt would be the same; write e.g. '{{question}}'"
            )
        return cls(source, tuple(parts))

    def render(self, record: Mapping[str, Any], where: str) -> str:
        """The text for `record`. Raises DataError, naming `where`, for a field that the record lacks."""
        return "".join(literal + (self._value(record, path, where) if path else "") for literal, path in self.parts)

    def _value(self, record: Mapping[str, Any], path: tuple[str, ...], where: str) -> str:
        value: Any = record
        for depth, name in enumerate(path):
            if isinstance(value, Mapping) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                place = path[0] + "".join(f"[{p}]" for p in path[1 : depth + 1])
                there = ", ".join(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
                raise DataError(f"{where}: prompt_template {self.source!r} wants {{{place}}}; there is: {there}")
        return str(value)


def parse_wrapper(text: str, *, key: str) -> tuple[str, str]:
    """Before and after the one `{}` of a prompt file; `{{` and `}}` stand for braces. DataError names the key."""
    before: list[str] = []
    after: list[str] = []
    places = 0
    for literal, field, specification, conversion in _pieces(text, key):
        (after if places else before).append(literal)
        if field is not None:
            if field or specification or conversion:
                raise DataError(
                    f"{key}: {{{field}}} is not allowed; one '{{}}' is for the prompt, '{{{{' and '}}}}' for braces"
                )
            places += 1
    if places != 1:
        raise DataError(f"{key}: there are {places} places '{{}}' for the prompt; one is wanted")
    return "".join(before), "".join(after)


def _pieces(text: str, key: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(text))
    except ValueError as error:
        raise DataError(f"{key}: {text!r}: {error}; write '{{{{' and '}}}}' for braces that are text") from error
