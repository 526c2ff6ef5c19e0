"""The schema seen as a tree of keys: what may stand at a dotted key, and how to say it to a user."""

import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from grpo.config.schema.base import Section

KIND = "kind"  # the key that chooses among several sections


@dataclass(frozen=True)
class Shape:
    """What may stand at a key: a section, one of several sections by `kind`, a map of names, or a leaf."""

    annotation: Any
    sections: tuple[type[Section], ...] = ()
    item: Any = None  # annotation of a map's values
    nullable: bool = False
    metadata: tuple[Any, ...] = ()

    @property
    def free(self) -> bool:
        """Whether any keys may stand below."""
        return self.annotation is Any


def shape_of(annotation: Any, metadata: tuple[Any, ...] = ()) -> Shape:
    """The shape of a type annotation of the schema."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        for one in more:
            metadata += tuple(one.metadata) if isinstance(one, FieldInfo) else (one,)
        return shape_of(inner, metadata)
    if origin in (Union, types.UnionType):
        return _shape_of_union(annotation, metadata)
    if _is_section(annotation):
        return Shape(annotation, sections=(annotation,))
    if origin is dict:
        return Shape(annotation, item=get_args(annotation)[1], metadata=metadata)
    return Shape(annotation, metadata=metadata)


def _shape_of_union(annotation: Any, metadata: tuple[Any, ...]) -> Shape:
    members = [one for one in get_args(annotation) if one is not type(None)]
    nullable = len(members) < len(get_args(annotation))
    if len(members) == 1:
        return replace(shape_of(members[0], metadata), nullable=nullable)
    if all(_is_section(one) for one in members):
        return Shape(annotation, sections=tuple(members), nullable=nullable)
    return Shape(annotation, nullable=nullable, metadata=metadata)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def kind_of(section: type[Section]) -> str:
    """The value of `kind` that chooses this section."""
    return str(get_args(section.model_fields[KIND].annotation)[0])


def narrow(shape: Shape, kind: object) -> Shape:
    """The shape with the one section that `kind` chooses; unchanged where nothing is chosen by kind."""
    chosen = tuple(section for section in shape.sections if len(shape.sections) > 1 and kind_of(section) == kind)
    return replace(shape, sections=chosen) if chosen else shape


def child(shape: Shape, name: str) -> Shape | None:
    """What may stand at `name` below; None where there is no such key."""
    if shape.free:
        return shape
    if shape.item is not None:
        return shape_of(shape.item)
    for section in shape.sections:
        if name in section.model_fields:
            return field_shape(section.model_fields[name])
    return None


def field_shape(field: FieldInfo) -> Shape:
    return shape_of(field.annotation, tuple(field.metadata))


def at(root: type[Section], key: str) -> Shape | None:
    """What may stand at a dotted key, in whichever kind has it."""
    shape: Shape | None = shape_of(root)
    for name in key.split("."):
        if shape is None:
            return None
        shape = child(shape, name)
    return shape


def section_keys(shape: Shape, prefix: str = "") -> Iterator[str]:
    """Every dotted key below, sections included; `*` stands for a name that the user chooses."""
    seen = set()
    if shape.item is not None:
        names = [] if shape.item is Any or not shape_of(shape.item).sections else ["*"]
    else:
        names = [name for section in shape.sections for name in section.model_fields]
    for name in names:
        if name in seen:
            continue
        seen.add(name)
        key = f"{prefix}.{name}" if prefix else name
        below = child(shape, name)
        assert below is not None
        yield key
        yield from section_keys(below, key)


def describe(shape: Shape) -> str:
    """What is valid at a leaf, in words: "a whole number above 0, or null"."""
    if len(shape.sections) > 1:
        words = f"a mapping with `{KIND}`: one of {', '.join(map(kind_of, shape.sections))}"
    elif shape.sections or shape.item is not None:
        words = "a mapping"
    else:
        words = _type_words(shape.annotation) + _bound_words(shape.metadata)
    return f"{words}, or null" if shape.nullable else words


_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Any: "anything"}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}


def _type_words(annotation: Any) -> str:
    if annotation in _TYPES:
        return _TYPES[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(str, arguments))
    if origin is list:
        return f"a list of {_PLURALS[arguments[0]]}"
    return " or ".join(_type_words(one) for one in arguments)


def _bound_words(metadata: tuple[Any, ...]) -> str:
    words = []
    for one in metadata:
        if isinstance(one, annotated_types.Gt):
            words.append(f"above {one.gt}")
        elif isinstance(one, annotated_types.Ge):
            words.append(f"at least {one.ge}")
        elif isinstance(one, annotated_types.Lt):
            words.append(f"below {one.lt}")
        elif isinstance(one, annotated_types.Le):
            words.append(f"at most {one.le}")
        elif isinstance(one, annotated_types.MinLen):
            words.append(f"of length {one.min_length}")
    return " " + " and ".join(words) if words else ""
