from itertools import combinations

import pytest

from grpo.matrix.canary.place import MOST_NODES, place_of, rounds_of_pairs

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "2",
}  # fmt: skip


def test_a_launchers_rank():
    place = place_of(TORCHRUN)
    assert (place.rank, place.world_size, place.local_rank, place.address, place.port) == (3, 4, 1, "n0", 29500)


def test_slurms_rank_has_a_port_of_its_step():
    place = place_of(SLURM)
    assert (place.rank, place.world_size, place.local_rank, place.address) == (9, 16, 1, "10.0.0.1")
    assert 20000 <= place.port < 40000
    assert place.port == place_of({**SLURM, "SLURM_PROCID": "0"}).port
    assert place.port != place_of({**SLURM, "SLURM_STEP_ID": "3"}).port


@pytest.mark.parametrize(
    "environ", [{}, {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0"}, {**SLURM, "SLURM_STEP_NUM_TASKS": "1"}]
)
def test_a_process_by_itself(environ):
    assert place_of(environ) is None


@pytest.mark.parametrize("count", range(MOST_NODES + 1))
def test_every_pair_once_and_no_node_twice_a_round(count):
    nodes = [f"n{at}" for at in range(count)]
    rounds = list(rounds_of_pairs(nodes))
    for pairs in rounds:
        named = [node for pair in pairs for node in pair]
        assert len(named) == len(set(named))
    pairs = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {frozenset(pair) for pair in combinations(nodes, 2)}


def test_of_many_nodes_each_is_measured_with_two_others_in_two_rounds():
    nodes = [f"n{at}" for at in range(64)]
    rounds = list(rounds_of_pairs(nodes))
    assert len(rounds) == 2
    for node in nodes:
        partners = {other for pairs in rounds for pair in pairs if node in pair for other in pair if other != node}
        assert len(partners) == 2
