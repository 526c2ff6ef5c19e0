"""Values that remember where they were written: the form of a recipe between its file and the schema."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Leaf:
    """A scalar, a list or null."""

    value: Any
    origin: str  # "recipes/tiny.yaml:12" or "override"


@dataclass(frozen=True)
class Removed:
    """What `~key` leaves in the layer of overrides: the inherited value is forgotten."""

    origin: str


@dataclass
class Branch:
    """A mapping."""

    origin: str
    children: dict[str, "Node"] = field(default_factory=dict)


Node = Leaf | Branch | Removed


def plain(node: Node) -> Any:
    """The values alone."""
    if isinstance(node, Branch):
        return {name: plain(child) for name, child in node.children.items() if not isinstance(child, Removed)}
    return None if isinstance(node, Removed) else node.value


def leaves(node: Node, prefix: str = "") -> Iterator[tuple[str, Leaf]]:
    """Each leaf with its dotted key; an empty mapping is a leaf too."""
    if isinstance(node, Leaf):
        yield prefix, node
    elif isinstance(node, Branch):
        if not node.children and prefix:
            yield prefix, Leaf({}, node.origin)
        for name, child in node.children.items():
            yield from leaves(child, f"{prefix}.{name}" if prefix else name)


def find(node: Node, key: str) -> Node | None:
    """The node at a dotted key."""
    for name in key.split("."):
        if not isinstance(node, Branch) or name not in node.children:
            return None
        node = node.children[name]
    return node


def put(root: Branch, key: str, value: Node) -> None:
    """Set a dotted key, making the mappings on the way; what stood there is replaced, mappings are merged."""
    *way, last = key.split(".")
    branch = root
    for name in way:
        below = branch.children.get(name)
        if not isinstance(below, Branch):
            below = Branch(value.origin)
            branch.children[name] = below
        branch = below
    held = branch.children.get(last)
    if isinstance(held, Branch) and isinstance(value, Branch):
        for name, child in value.children.items():
            put(held, name, child) if "." not in name else held.children.__setitem__(name, child)
        return
    branch.children[last] = value


def take(root: Branch, key: str) -> Node | None:
    """Remove a dotted key and return what stood there; mappings left empty go too."""
    head, _, rest = key.partition(".")
    child = root.children.get(head)
    if child is None:
        return None
    if not rest:
        return root.children.pop(head)
    if not isinstance(child, Branch):
        return None
    taken = take(child, rest)
    if taken is not None and not child.children:
        root.children.pop(head)
    return taken


def removals(node: Node, prefix: str = "") -> Iterator[str]:
    """Dotted keys that are to be forgotten."""
    if isinstance(node, Removed):
        yield prefix
    elif isinstance(node, Branch):
        for name, child in node.children.items():
            yield from removals(child, f"{prefix}.{name}" if prefix else name)


def tree_of(values: Any, origin: str = "") -> Node:
    """A tree of plain values."""
    if isinstance(values, dict):
        return Branch(origin, {name: tree_of(value, origin) for name, value in values.items()})
    return Leaf(values, origin)
