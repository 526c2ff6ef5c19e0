"""Which node each rank goes to, without a cluster."""

import pytest

from grpo.config import load_config
from grpo.workers.groups.ray_session import Node
from grpo.workers.groups.reservation import _slots, assign, divided


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


class Reserved:
    """A reservation of places on nodes: so many on each."""

    def __init__(self, *places):
        nodes = [node(str(number), count) for number, count in enumerate(places, 1) for _ in range(count)]
        self.slots, self.world_size, self.session = _slots(nodes), len(nodes), None

    def options(self, rank, *, share):
        return {"bundle": rank, "share": share}


def rooms(reserved, recipe, *overrides):
    return divided(reserved, load_config(recipe, overrides).config)


def test_a_colocated_engine_rank_has_half_of_its_policy_ranks_place():
    found = rooms(Reserved(8), "grpo_math_8b", "policy.generation.vllm_cfg.tensor_parallel_size=2")
    assert found.policy == found.engines
    assert [found.engines.options(rank) for rank in (0, 7)] == [
        {"bundle": 0, "share": 0.5},
        {"bundle": 7, "share": 0.5},
    ]


def test_engines_of_their_own_have_the_last_gpus_whole():
    separate = "policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.gpus_per_node=4"
    found = rooms(Reserved(8), "grpo_math_8b", *separate)
    assert (found.policy.bundles, found.engines.bundles) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert found.engines.options(1) == {"bundle": 5, "share": 1.0}


def test_engines_of_their_own_have_the_last_nodes_whole():
    separate = "policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.num_nodes=1"
    found = rooms(Reserved(4, 4, 4), "grpo_math_8b", *separate, "cluster.num_nodes=3", "cluster.gpus_per_node=4")
    assert found.engines.bundles == (8, 9, 10, 11)
    slots = found.engines.slots
    assert [(slot.rank, slot.node_rank, slot.local_rank, slot.local_world_size) for slot in slots] == [
        (0, 0, 0, 4), (1, 0, 1, 4), (2, 0, 2, 4), (3, 0, 3, 4),
    ]  # fmt: skip
    assert {slot.node_id for slot in slots} == {"3"}


@pytest.mark.parametrize(("places", "overrides", "engines", "share"), [
    ((1,), [], (0,), 0.5),
    ((1,), ["cluster.cpu_engine_ranks=6", "policy.generation.backend=hf"], (0,) * 6, 0.1428),  # seven parts, at most 1
    ((2,), ["cluster.cpu_ranks=2", "cluster.cpu_engine_ranks=3"], (0, 1, 0), 0.3333),
    ((2,), ["cluster.cpu_ranks=2", "policy.generation.colocated.enabled=false"], (0,), 0.5),
    ((2, 2), ["cluster.cpu_ranks=4", "cluster.num_nodes=2", "cluster.cpu_engine_ranks=2"], (0, 2), 0.5),
    # Each engine on one node.
    ((2, 2), ["cluster.cpu_ranks=4", "cluster.num_nodes=2", "cluster.cpu_engine_ranks=6",
              "policy.generation.vllm_cfg.tensor_parallel_size=2", "policy.generation.backend=vllm"],
     (0, 1, 2, 3, 0, 1), 0.3333),
    ((1, 1), ["cluster.cpu_ranks=2", "cluster.num_nodes=2", "policy.generation.vllm_cfg.tensor_parallel_size=2",
              "policy.generation.backend=vllm"], (0, 0), 0.3333),
])  # fmt: skip
def test_engines_of_a_cpu_run_lie_beside_the_training_ranks(places, overrides, engines, share):
    found = rooms(Reserved(*places), "tiny", *overrides)
    assert found.policy.bundles == tuple(range(sum(places)))
    assert (found.engines.bundles, found.engines.share) == (engines, share)
