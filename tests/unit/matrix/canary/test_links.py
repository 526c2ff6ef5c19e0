"""Four real ranks on two pretended nodes."""

import torch
import torch.distributed as dist

from grpo.matrix.canary.links import Ranks, measure_links
from grpo.matrix.canary.measure import assemble
from grpo.matrix.canary.place import Place
from tests.support.ranks import run_cells

HOSTS = ["a", "a", "b", "b"]


def measured_here(hosts):
    rank = dist.get_rank()
    place = Place(rank, dist.get_world_size(), rank % 2, "", 0)
    ranks = Ranks(place, torch.device("cpu"), dist.distributed_c10d._get_default_store())
    links = measure_links(ranks, hosts)
    return ranks.gather({"host": hosts[rank], "rates": {"rank": rank}, **links})


def test_within_each_node_and_between_the_two():
    (answers,) = run_cells(measured_here, [HOSTS], world=4, preload=["grpo.matrix.canary.links"], seconds=60)
    assert answers[0] == answers[3]
    of_ranks = answers[0]
    assert [each["rates"]["rank"] for each in of_ranks] == [0, 1, 2, 3]
    canary = assemble(of_ranks, "cpu", {})
    assert [node["host"] for node in canary["nodes"]] == ["a", "b"]
    for node in canary["nodes"]:
        own = [each["node"] for each in of_ranks if each["host"] == node["host"]]
        assert node["all_reduce_node_gb_per_s"] == min(own) > 0
    (pair,) = canary["pairs"]
    assert pair["hosts"] == ["a", "b"]
    assert pair["all_reduce_pair_gb_per_s"] == min(each["pairs"]["a|b"] for each in of_ranks) > 0
