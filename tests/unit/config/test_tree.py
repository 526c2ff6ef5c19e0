from grpo.config.tree import Branch, Leaf, Removed, find, leaves, plain, put, removals, take, tree_of

VALUES = {"a": {"b": 1, "c": {}}, "d": [1, {"e": 2}]}


def test_values_survive_the_tree():
    assert plain(tree_of(VALUES)) == VALUES


def test_leaves_are_scalars_lists_and_empty_mappings():
    assert [(key, leaf.value) for key, leaf in leaves(tree_of(VALUES))] == [
        ("a.b", 1),
        ("a.c", {}),
        ("d", [1, {"e": 2}]),
    ]


def test_put_makes_the_way_and_merges_mappings():
    tree = tree_of(VALUES)
    put(tree, "a.c.x", Leaf(5, "here"))
    put(tree, "a", tree_of({"b": 2, "c": {"y": 6}}))
    put(tree, "d.z", Leaf(7, "here"))
    assert plain(tree) == {"a": {"b": 2, "c": {"x": 5, "y": 6}}, "d": {"z": 7}}


def test_a_key_with_a_dot_is_one_key_within_a_mapping():
    tree = tree_of({"a": {"k": {}}})
    put(tree, "a.k", tree_of({"x.y": 1}))
    assert plain(tree) == {"a": {"k": {"x.y": 1}}}


def test_take_removes_and_forgets_what_is_left_empty():
    tree = tree_of({"a": {"b": {"c": 1}}, "d": 2})
    assert take(tree, "a.b.c") == Leaf(1, "")
    assert plain(tree) == {"d": 2}
    assert take(tree, "a.b") is None
    assert take(tree, "d.e") is None


def test_find_stops_at_leaves():
    assert find(tree_of(VALUES), "a.b") == Leaf(1, "")
    assert find(tree_of(VALUES), "a.b.c") is None


def test_removals_are_listed_and_are_no_values():
    tree = Branch("", {"a": Branch("", {"b": Removed(""), "c": Leaf(1, "")})})
    assert list(removals(tree)) == ["a.b"]
    assert plain(tree) == {"a": {"c": 1}}
