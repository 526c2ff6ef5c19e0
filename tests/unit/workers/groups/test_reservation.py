"""Which node each rank goes to, without a cluster."""

import pytest

from grpo.workers.groups.ray_session import Node
from grpo.workers.groups.reservation import _slots, assign


def node(name, cpus, gpus=0, *, free_cpus=None, free_gpus=None):
    total = {"CPU": float(cpus)} | ({"GPU": float(gpus)} if gpus else {})
    free = {"CPU": float(cpus if free_cpus is None else free_cpus)}
    if gpus:
        free["GPU"] = float(gpus if free_gpus is None else free_gpus)
    return Node(name, f"10.0.0.{name}", total, free)


CPU, GPU = {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}


@pytest.mark.parametrize(("nodes", "world_size", "need", "ranks_per_node", "expected"), [
    ([node("1", 4)], 3, CPU, None, "111"),
    ([node("1", 4)], 4, CPU, None, "1111"),
    ([node("1", 4)], 5, CPU, None, None),
    ([node("1", 2), node("2", 3)], 4, CPU, None, "1122"),
    ([node("1", 2), node("2", 3)], 3, CPU, None, "222"),  # one node that holds all is better
    ([node("1", 2), node("2", 3)], 6, CPU, None, None),
    ([node("1", 2), node("2", 8)], 4, CPU, 2, "1122"),
    ([node("1", 1), node("2", 8)], 4, CPU, 2, None),  # not both pairs on the large node
    ([node("1", 9, 2), node("2", 9, 2), node("3", 9, 4)], 4, GPU, 2, "1122"),
    ([node("1", 9, 1), node("2", 9, 4), node("3", 9, 4)], 8, GPU, 4, "22223333"),
    ([node("1", 9, 4), node("2", 3, 4)], 8, GPU, 4, None),  # GPUs enough, CPUs not
    ([node("1", 9)], 1, GPU, None, None),
    ([], 1, CPU, None, None),
])  # fmt: skip
def test_ranks_go_to_nodes(nodes, world_size, need, ranks_per_node, expected):
    chosen = assign(nodes, world_size, need, ranks_per_node, free=False)
    assert (None if chosen is None else "".join(each.node_id for each in chosen)) == expected


def test_what_others_hold_counts_only_for_what_is_free():
    nodes = [node("1", 4, 4, free_gpus=1), node("2", 4, 4)]
    assert [each.node_id for each in assign(nodes, 4, GPU, 4, free=True)] == ["2"] * 4
    assert [each.node_id for each in assign(nodes, 4, GPU, 4, free=False)] == ["1"] * 4
    assert assign(nodes, 8, GPU, 4, free=True) is None


def test_places_on_nodes_are_numbered():
    one, two = node("1", 4), node("2", 4)
    slots = _slots([two, two, one, one, one])
    assert [slot.rank for slot in slots] == [0, 1, 2, 3, 4]
    assert [slot.node_rank for slot in slots] == [0, 0, 1, 1, 1]
    assert [slot.local_rank for slot in slots] == [0, 1, 0, 1, 2]
    assert [slot.local_world_size for slot in slots] == [2, 2, 3, 3, 3]
    assert slots[0].address == "10.0.0.2"
