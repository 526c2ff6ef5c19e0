"""Which configuration keys a piece of code reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from grpo.config.schema import Config, Section


@dataclass
class Reads:
    """`config` is the copy to hand to the code; reads of it on any thread of this process count.

    A section as a whole (`config.policy`) is no leaf: what is read of it counts. A copy that the code makes of a
    section (`model_copy`) is not followed, nor is `model_dump`.
    """

    config: Config
    leaves: frozenset[str]
    read: set[str] = field(default_factory=set)

    @property
    def unread(self) -> list[str]:
        return sorted(self.leaves - self.read)


def leaf_keys(config: Config) -> frozenset[str]:
    """Dotted keys of everything that is not a section or a map of sections."""
    return frozenset(key for paths in _paths(config).values() for key in paths[1])


def _paths(config: Config) -> dict[int, tuple[str, list[str]]]:
    """By id of each section: its dotted key, and the keys of its leaves."""
    found: dict[int, tuple[str, list[str]]] = {}

    def walk(section: Section, prefix: str) -> None:
        leaves: list[str] = []
        found[id(section)] = (prefix, leaves)
        for name in type(section).model_fields:
            value: Any = getattr(section, name)
            if isinstance(value, Section):
                walk(value, f"{prefix}{name}.")
            elif isinstance(value, dict) and value and all(isinstance(one, Section) for one in value.values()):
                for key, one in value.items():
                    walk(one, f"{prefix}{name}.{key}.")
            else:
                leaves.append(prefix + name)

    walk(config, "")
    return found


@contextmanager
def record_reads(config: Config) -> Iterator[Reads]:
    """Record which leaves of a copy of `config` are read as attributes within the block."""
    copy = _unshared(config)
    paths = _paths(copy)
    reads = Reads(copy, leaf_keys(copy))
    plain = Section.__getattribute__

    def recording(self: Section, name: str) -> Any:
        value = plain(self, name)
        known = paths.get(id(self))
        if known is not None and known[0] + name in reads.leaves:
            reads.read.add(known[0] + name)
        return value

    had_own = "__getattribute__" in Section.__dict__
    assert not had_own, "blocks do not nest"
    Section.__getattribute__ = recording  # type: ignore[method-assign]
    try:
        yield reads
    finally:
        del Section.__getattribute__


def _unshared(config: Config) -> Config:
    """A copy in which no two keys share one section object, as defaults otherwise may."""

    def rebuilt(value: Any) -> Any:
        if isinstance(value, Section):
            values = {name: rebuilt(getattr(value, name)) for name in type(value).model_fields}
            return type(value).model_construct(_fields_set=set(value.model_fields_set), **values)
        if isinstance(value, dict):
            return {key: rebuilt(one) for key, one in value.items()}
        return value

    copy = rebuilt(config)
    assert isinstance(copy, Config)
    return copy
