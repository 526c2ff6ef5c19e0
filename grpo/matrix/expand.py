"""From a family's file to its cases: defaults, the product of `axes:`, and what `exclude:` takes out."""

from collections.abc import Iterator
from itertools import product

from grpo.config.merge import merge
from grpo.config.nearest import did_you_mean
from grpo.config.tree import Branch, Leaf, Node, find
from grpo.errors import MatrixError

AXES, EXCLUDE, OVERRIDES = "axes", "exclude", "overrides"


def expand(case_id: str, entry: Branch, defaults: Branch) -> Iterator[tuple[str, Branch]]:
    """Each case that an entry stands for: its id and its keys.

    The entry's keys are laid over the defaults; mappings are merged, `overrides` add up, anything else is replaced.
    `axes` maps an axis to its values, and a value to keys of a case that are laid over the entry's alike. The id is
    `<entry>-<value>-<value>`, in the order of the axes. `exclude` maps a reason to the values (of one axis or several)
    that do not go together. Raises MatrixError naming the line.
    """
    base = _laid_over(defaults, entry)
    axes = _mapping(base.children.pop(AXES, None), AXES)
    excluded = _mapping(base.children.pop(EXCLUDE, None), EXCLUDE)
    if not axes:
        if excluded:
            raise MatrixError(f"{entry.origin}: {case_id}: {EXCLUDE} without {AXES}")
        yield case_id, base
        return
    values = {axis: _mapping(node, f"{AXES}.{axis}") for axis, node in axes.items()}
    for axis, named in values.items():
        if not named:
            raise MatrixError(f"{axes[axis].origin}: {case_id}: {AXES}.{axis} has no values")
    combinations = {reason: _combination(reason, node, values) for reason, node in excluded.items()}
    used = dict.fromkeys(combinations, False)
    for chosen in product(*values.values()):
        point = dict(zip(values, chosen, strict=True))
        hits = [reason for reason, taken_out in combinations.items() if taken_out.items() <= point.items()]
        used.update(dict.fromkeys(hits, True))
        if not hits:
            tree = base
            for axis, value in point.items():
                tree = _laid_over(tree, values[axis][value])
            yield "-".join((case_id, *chosen)), tree
    idle = [reason for reason, hit in used.items() if not hit]
    if idle:
        raise MatrixError(f"{excluded[idle[0]].origin}: {case_id}: {EXCLUDE} {idle[0]!r} takes out nothing")


def _mapping(node: Node | None, key: str) -> dict[str, Node]:
    if node is None:
        return {}
    if not isinstance(node, Branch):
        raise MatrixError(f"{node.origin}: {key}: expected a mapping")
    return node.children


def _combination(reason: str, node: Node, values: dict[str, dict[str, Node]]) -> dict[str, str]:
    wanted = {}
    for axis, leaf in _mapping(node, f"{EXCLUDE}.{reason}").items():
        if axis not in values:
            raise MatrixError(f"{leaf.origin}: {EXCLUDE}: unknown axis {axis}{did_you_mean(axis, values)}")
        value = leaf.value if isinstance(leaf, Leaf) else None
        if not isinstance(value, str) or value not in values[axis]:
            raise MatrixError(
                f"{leaf.origin}: {EXCLUDE}: axis {axis} has no value {value!r}; it has {', '.join(values[axis])}"
            )
        wanted[axis] = value
    if not wanted:
        raise MatrixError(f"{node.origin}: {EXCLUDE} {reason!r} names no axis")
    return wanted


def _laid_over(below: Branch, above: Node) -> Branch:
    if not isinstance(above, Branch):
        raise MatrixError(f"{above.origin}: expected a mapping of keys of a case")
    merged = merge(below, above, None)
    earlier, later = find(below, OVERRIDES), find(above, OVERRIDES)
    if isinstance(earlier, Leaf) and isinstance(later, Leaf) and isinstance(earlier.value, list):
        if not isinstance(later.value, list):
            raise MatrixError(f"{later.origin}: {OVERRIDES}: expected a list of texts")
        merged.children[OVERRIDES] = Leaf([*earlier.value, *later.value], later.origin)
    return merged
