"""From a record of any source to a prompt and its answer."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from numbers import Number
from typing import Any

from grpo.data.template import RecordTemplate
from grpo.errors import DataError

Message = dict[str, str]
DEFAULT_ANSWER_COLUMN = "answer"


@dataclass(frozen=True)
class Example:
    """One record, read but not yet rendered."""

    example_id: str  # source and position, for prompt ids and error messages
    prompt: str | list[Message]
    answer: str | None
    record: Mapping[str, Any]


def examples(
    records: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    input_key: str,
    output_key: str,
    prompt_template: str | None,
    max_samples: int | None,
    key: str,
) -> list[Example]:
    """The examples of (name, record) pairs, the first `max_samples` of them.

    A record without the answer column has no answer, which suits verifiers that need none; a column named in the recipe
    that no record has is an error.

    Raises DataError, naming the record, for a missing prompt column or a prompt or answer of a wrong type.
    """
    template = None if prompt_template is None else RecordTemplate.parse(prompt_template, key=f"{key}.prompt_template")
    found = []
    answered = output_key == DEFAULT_ANSWER_COLUMN
    record: Mapping[str, Any] = {}
    for where, record in islice(records, max_samples):
        prompt = _prompt(record, input_key, where, key) if template is None else template.render(record, where)
        answered = answered or output_key in record
        found.append(Example(where, prompt, _answer(record.get(output_key), output_key, where), record))
    if found and not answered:
        raise DataError(
            f"{key}.output_key: no record has the column {output_key!r}; the columns are: {_columns(record)}"
        )
    return found


def numbered(records: Iterable[Mapping[str, Any]], source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, record) pairs for records that have no line numbers."""
    for index, record in enumerate(records):
        yield f"{source}:{index}", record


def _prompt(record: Mapping[str, Any], input_key: str, where: str, key: str) -> str | list[Message]:
    if input_key not in record:
        raise DataError(
            f"{where}: there is no column {input_key!r} ({key}.input_key); the columns are: {_columns(record)}"
        )
    value = record[input_key]
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{where}: the prompt in column {input_key!r} is empty")
        return value
    if isinstance(value, list) and value and all(_is_message(m) for m in value):
        return [{"role": m["role"], "content": m["content"]} for m in value]
    raise DataError(
        f"{where}: column {input_key!r} holds {_shown(value)}; wanted: a text, or a chat such as "
        "[{'role': 'user', 'content': '...'}]"
    )


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
    )


def _answer(value: Any, output_key: str, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Number):  # bool and Decimal too
        return str(value)
    raise DataError(
        f"{where}: the answer in column {output_key!r} is {_shown(value)}; wanted: a text, a number or null"
    )


def _columns(record: Mapping[str, Any]) -> str:
    return ", ".join(map(str, record)) or "none"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
