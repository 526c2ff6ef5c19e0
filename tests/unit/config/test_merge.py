import pytest

from grpo.config.merge import merge
from grpo.config.schema import Config
from grpo.config.shape import shape_of
from grpo.config.tree import Branch, Leaf, Removed, plain, tree_of


def merged(below, above, schema=None):
    return plain(merge(tree_of(below), above if isinstance(above, Branch) else tree_of(above), schema))


@pytest.mark.parametrize(
    ("below", "above", "expected"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"x": 1}}, {"a": None}, {"a": None}),
        ({"a": None}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({"a": {"x": 1}}, {"a": {}}, {"a": {"x": 1}}),
        ({"a": {"kind": "p", "x": 1}}, {"a": {"kind": "q"}}, {"a": {"kind": "q", "x": 1}}),
    ],
)
def test_mappings_are_merged_and_the_rest_is_replaced(below, above, expected):
    assert merged(below, above) == expected


def test_neither_layer_is_changed():
    below, above = {"a": {"x": 1}}, {"a": {"y": 2}}
    low, high = tree_of(below), tree_of(above)
    merge(low, high, None).children["a"].children["z"] = Leaf(0, "")
    assert (plain(low), plain(high)) == (below, above)


def test_removed_keys_are_forgotten():
    above = Branch("", {"a": Branch("", {"x": Removed("")}), "b": Removed("")})
    assert merged({"a": {"x": 1, "y": 2}, "b": 3}, above) == {"a": {"y": 2}}


@pytest.mark.parametrize(
    ("above", "expected"),
    [
        ({"kind": "file"}, {"kind": "file", "input_key": "q", "max_samples": 3}),
        ({"kind": "hub"}, {"kind": "hub", "input_key": "q", "max_samples": 3, "dataset_name": "n", "split": "s"}),
        (
            {"kind": "none such"},
            {"kind": "none such", "input_key": "q", "max_samples": 3, "dataset_name": "n", "split": "s"},
        ),
        # What the upper layer itself says is kept, and refused later.
        ({"kind": "file", "task": "t"}, {"kind": "file", "input_key": "q", "max_samples": 3, "task": "t"}),
    ],
)
def test_another_kind_drops_what_it_lacks(above, expected):
    below = {"kind": "hub", "input_key": "q", "max_samples": 3, "dataset_name": "n", "split": "s"}
    found = merged({"data": {"train": below}}, {"data": {"train": above}}, shape_of(Config))
    assert found == {"data": {"train": expected}}
