"""A tree of values against a section of the matrix: every unknown key and wrong type at once, with file and line."""

import datetime as dt
import json
from collections.abc import Iterator
from typing import TypeVar, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from grpo.config.nearest import did_you_mean
from grpo.config.schema.base import Section
from grpo.config.shape import KIND, Shape, child, describe, kind_of, narrow, section_keys, shape_of
from grpo.config.tree import Branch, Leaf, Node, find, plain, take
from grpo.errors import MatrixError

S = TypeVar("S", bound=Section)


def build(model: type[S], tree: Branch) -> S:
    """The typed section. Raises MatrixError with one line for each key that is wrong."""
    root = shape_of(model)
    problems = []
    for key, node, parent in list(_unknown(tree, root, "")):
        nearest = did_you_mean(key, [*_siblings(parent, key), *section_keys(root)])
        problems.append(f"{node.origin}: unknown key {key}{nearest}")
        take(tree, key)
    try:
        built = model.model_validate(plain(tree))
    except ValidationError as error:
        seen: dict[str, str] = {}
        for detail in error.errors(include_url=False):
            key, message = _message(tree, root, detail)
            seen.setdefault(key, message)
        raise MatrixError(listed(problems + list(seen.values()))) from None
    if problems:
        raise MatrixError(listed(problems))
    return built


def listed(problems: list[str]) -> str:
    """One message for one or several problems."""
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} errors in the matrix:\n" + "\n".join(f"  - {one}" for one in problems)


def origin_of(tree: Branch, key: str) -> str:
    """File and line of a dotted key, or of the nearest mapping above that was written."""
    while key:
        node = find(tree, key)
        if isinstance(node, Leaf | Branch):
            return node.origin
        key = key.rpartition(".")[0]
    return tree.origin


def _unknown(node: Node, shape: Shape, key: str) -> Iterator[tuple[str, Node, Shape]]:
    if not isinstance(node, Branch) or shape.free or not (shape.sections or shape.item is not None):
        return
    kind = node.children.get(KIND)
    shape = narrow(shape, kind.value) if isinstance(kind, Leaf) else shape
    for name, below in node.children.items():
        inner = f"{key}.{name}" if key else name
        below_shape = child(shape, name)
        if below_shape is None:
            yield inner, below, shape
        else:
            yield from _unknown(below, below_shape, inner)


def _siblings(shape: Shape, key: str) -> list[str]:
    parent = key.rpartition(".")[0]
    names = [name for section in shape.sections for name in section.model_fields]
    return [f"{parent}.{name}" if parent else name for name in names]


def _message(tree: Branch, root: Shape, detail: ErrorDetails) -> tuple[str, str]:
    key, shape, description = _walk(root, detail["loc"])
    about = f" ({description})" if description else ""
    if detail["type"] == "missing":
        return key, f"{origin_of(tree, key)}: {key} is missing: expected {_expected(shape)}{about}"
    if detail["type"].startswith("union_tag"):
        key = f"{key}.{KIND}"
        return key, f"{origin_of(tree, key)}: {key}: expected one of {', '.join(map(kind_of, shape.sections))}"
    why = f"; it is {detail['ctx']['error']}" if detail["type"] == "value_error" and "ctx" in detail else ""
    given = json.dumps(detail["input"], ensure_ascii=False, default=str)[:80]
    return key, f"{origin_of(tree, key.partition('[')[0])}: {key} = {given}: expected {_expected(shape)}{about}{why}"


def _walk(shape: Shape, loc: tuple[int | str, ...]) -> tuple[str, Shape, str | None]:
    """Dotted key, shape and description at pydantic's location, whose tags of unions are no keys."""
    key, description = "", None
    for part in loc:
        if len(shape.sections) > 1 and part in [kind_of(one) for one in shape.sections]:
            shape = narrow(shape, part)
            continue
        if isinstance(part, int):
            key += f"[{part}]"
            continue
        below = child(shape, part)
        if below is None:
            break
        description = next((s.model_fields[part].description for s in shape.sections if part in s.model_fields), None)
        key, shape = f"{key}.{part}" if key else part, below
    return key, shape, description


def _expected(shape: Shape) -> str:
    if shape.annotation is dt.date:
        return "a date such as 2026-01-31"
    if get_origin(shape.annotation) is list:
        return "a list of texts"
    return describe(shape)
