"""A tree of values against the schema: unknown keys, missing keys, wrong types; all of them at once."""

import json
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from grpo.config.aliases import hint_for
from grpo.config.nearest import did_you_mean, valid_keys
from grpo.config.schema import Config
from grpo.config.shape import KIND, Shape, child, describe, kind_of, narrow, section_keys, shape_of
from grpo.config.tree import Branch, Leaf, Node, find, plain, take
from grpo.errors import ConfigError


def build(tree: Branch) -> Config:
    """The typed configuration. Raises ConfigError with one line for each key that is wrong."""
    problems = []
    for key, node in list(_unknown(tree, shape_of(Config), "")):
        problems.append(_unknown_message(tree, key, node))
        take(tree, key)
    problems += _interpolations(tree, "")
    try:
        config = Config.model_validate(plain(tree))
    except ValidationError as error:
        seen: dict[str, str] = {}
        for detail in error.errors(include_url=False):
            key, message = _type_message(tree, detail)
            seen.setdefault(key, message)
        raise ConfigError(listed(problems + list(seen.values()))) from None
    if problems:
        raise ConfigError(listed(problems))
    return config


def listed(problems: list[str]) -> str:
    """One message for one or several problems."""
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} errors in the configuration:\n" + "\n".join(f"  - {one}" for one in problems)


def show(value: Any) -> str:
    """A value as YAML has it, cut short."""
    if isinstance(value, dict):
        return "a mapping"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _unknown(node: Node, shape: Shape, key: str) -> list[tuple[str, Node]]:
    if not isinstance(node, Branch) or shape.free or not (shape.sections or shape.item is not None):
        return []
    kind = node.children.get(KIND)
    shape = narrow(shape, kind.value) if isinstance(kind, Leaf) else shape
    found: list[tuple[str, Node]] = []
    for name, below in node.children.items():
        inner = f"{key}.{name}" if key else name
        below_shape = child(shape, name)
        found += [(inner, below)] if below_shape is None else _unknown(below, below_shape, inner)
    return found


def _unknown_message(tree: Branch, key: str, node: Node) -> str:
    hint = hint_for(key)
    advice = f": {hint}" if hint else _other_kind(tree, key) or did_you_mean(key, _candidates(tree, key))
    return f"{node.origin}: unknown key {key}{advice}"


def _candidates(tree: Branch, key: str) -> list[str]:
    """Valid keys; those of a dataset that another kind has are left out."""
    candidates = valid_keys(key)
    for parent in ("data.train", "data.validation"):
        kind = find(tree, f"{parent}.{KIND}")
        shape = narrow(_walk(parent.split("."))[1], kind.value if isinstance(kind, Leaf) else None)
        valid = set(section_keys(shape, parent))
        candidates = [one for one in candidates if not one.startswith(f"{parent}.") or one in valid]
    return candidates


def _other_kind(tree: Branch, key: str) -> str | None:
    parent, _, name = key.rpartition(".")
    kind = find(tree, f"{parent}.{KIND}") if parent else None
    shape = _walk(parent.split("."))[1] if parent else shape_of(Config)
    owners = [kind_of(one) for one in shape.sections if len(shape.sections) > 1 and name in one.model_fields]
    if not owners or not isinstance(kind, Leaf):
        return None
    return f": it belongs to {parent}.{KIND}={' or '.join(owners)}, and {KIND} is {kind.value} ({kind.origin})"


def _interpolations(node: Node, key: str) -> list[str]:
    if isinstance(node, Branch):
        below = node.children.items()
        return [one for name, inner in below for one in _interpolations(inner, f"{key}.{name}" if key else name)]
    value = node.value if isinstance(node, Leaf) else None
    if isinstance(value, str) and value.startswith("${") and value.endswith("}"):
        advice = "null takes what follows from other keys, where that is so"
        return [f"{node.origin}: {key} = {show(value)}: there is no interpolation; {advice}"]
    return []


def _walk(loc: list[Any] | list[str] | tuple[Any, ...]) -> tuple[str, Shape]:
    """The dotted key and the shape of pydantic's location, whose tags of unions are no keys."""
    shape, key = shape_of(Config), ""
    for part in loc:
        if len(shape.sections) > 1 and part in map(kind_of, shape.sections) and narrow(shape, part) is not shape:
            shape = narrow(shape, part)
            continue
        if isinstance(part, int):
            key += f"[{part}]"
            continue
        below = child(shape, str(part))
        if below is None:
            break
        key, shape = f"{key}.{part}" if key else str(part), below
    return key, shape


def _type_message(tree: Branch, detail: ErrorDetails) -> tuple[str, str]:
    key, shape = _walk(detail["loc"])
    if detail["type"] == "missing":
        return key, f"{key} is missing: expected {describe(shape)}{_description(key)}"
    if detail["type"].startswith("union_tag"):
        key, valid = f"{key}.{KIND}", ", ".join(map(kind_of, shape.sections))
        given = find(tree, key)
        if not isinstance(given, Leaf):
            return key, f"{key} is missing: expected one of {valid}"
        return key, f"{given.origin}: {key} = {show(given.value)}: expected one of {valid}"
    node = find(tree, key.partition("[")[0])
    origin = "default" if node is None else node.origin
    advice = "; put it in quotes" if shape.annotation is str and isinstance(detail["input"], int | float) else ""
    return key, f"{origin}: {key} = {show(detail['input'])}: expected {describe(shape)}{advice}"


def _description(key: str) -> str:
    parent, _, name = key.rpartition(".")
    shape = _walk(parent.split("."))[1] if parent else shape_of(Config)
    for section in shape.sections:
        description = section.model_fields[name].description if name in section.model_fields else None
        if description:
            return f" ({description})"
    return ""
