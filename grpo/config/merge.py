"""One layer of a configuration laid over another."""

from grpo.config.shape import KIND, Shape, child, kind_of, narrow
from grpo.config.tree import Branch, Leaf, Node, Removed


def merge(below: Branch, above: Branch, shape: Shape | None) -> Branch:
    """A new tree: mappings are merged key by key, everything else of `above` replaces what `below` has.

    Where a section is chosen by `kind` and `above` chooses another one, the keys of `below` that the new kind lacks are
    dropped: `data.train.kind=file` over a `hub` dataset forgets its `dataset_name` and keeps its `input_key`.
    """
    merged = Branch(below.origin, _kept(below, above, shape))
    if shape is not None:
        kind = above.children.get(KIND) or merged.children.get(KIND)
        shape = narrow(shape, kind.value) if isinstance(kind, Leaf) else shape
    for name, upper in above.children.items():
        lower = merged.children.get(name)
        if isinstance(upper, Removed):
            merged.children.pop(name, None)
        elif isinstance(upper, Branch):
            under = lower if isinstance(lower, Branch) else Branch(upper.origin)
            merged.children[name] = merge(under, upper, None if shape is None else child(shape, name))
        else:
            merged.children[name] = upper
    return merged


def _kept(below: Branch, above: Branch, shape: Shape | None) -> dict[str, Node]:
    old, new = below.children.get(KIND), above.children.get(KIND)
    if shape is None or len(shape.sections) < 2 or not isinstance(old, Leaf) or not isinstance(new, Leaf):
        return dict(below.children)
    chosen = [section for section in shape.sections if kind_of(section) == new.value]
    if old.value == new.value or not chosen:
        return dict(below.children)
    return {name: node for name, node in below.children.items() if name in chosen[0].model_fields}
