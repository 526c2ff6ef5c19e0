"""Ranks on the nodes of an existing cluster: here two nodes on this machine, with pretend GPUs."""

from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

from grpo.errors import WorkerError
from grpo.workers.groups.ray_group import RayGroup
from grpo.workers.groups.ray_session import RaySession
from grpo.workers.groups.reservation import Reservation, Room
from tests.functional.workers.groups.conftest import START, gone
from tests.support.group_workers import Ranked

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300), pytest.mark.xdist_group("ray-own")]


@pytest.fixture(scope="module")
def session() -> Iterator[RaySession]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 2})
    cluster.add_node(num_cpus=3, num_gpus=2)
    try:
        with RaySession(address=cluster.address) as joined:
            yield joined
        assert not ray.is_initialized()
        assert cluster.list_all_nodes()  # left, not ended
    finally:
        cluster.shutdown()


@pytest.mark.parametrize(("world_size", "options", "wanted"), [
    (8, {}, r"8 x \(1 CPU, 0 GPU\);"),
    (2, {"gpus_per_worker": 3}, r"2 x \(1 CPU, 3 GPU\);"),
    (8, {"gpus_per_worker": 1, "ranks_per_node": 4}, r"8 x \(1 CPU, 1 GPU\), 4 on each of 2 nodes;"),
    (1, {"cpus_per_worker": 60}, r"1 x \(60 CPU, 0 GPU\);"),
])  # fmt: skip
def test_what_the_cluster_cannot_give_is_said_at_once(session, world_size, options, wanted):
    with pytest.raises(WorkerError, match=f"too small: wanted {wanted}") as caught:
        Reservation(session, world_size, **options)
    assert "has 4 CPU, 2 GPU, free " in str(caught.value)
    assert "has 3 CPU, 2 GPU, free " in str(caught.value)
    assert not [each for each in ray.util.placement_group_table().values() if each["state"] == "PENDING"]


def test_what_others_hold_is_said(session):
    with (
        Reservation(session, 6),
        pytest.raises(WorkerError, match=r"busy: wanted 2 x \(1 CPU, 0 GPU\).*has . CPU, 2 GPU, free 0 CPU"),
    ):
        Reservation(session, 2, deadline_s=1.0)
    Reservation(session, 7, deadline_s=10.0).release()  # it comes back


def test_ranks_fill_the_nodes_one_after_another_and_see_their_own_gpu(session):
    with (
        Reservation(session, 4, gpus_per_worker=1, ranks_per_node=2) as reservation,
        RayGroup(Ranked, ["gloo"], reservation=Room(reservation, (0, 1, 2, 3), 0.5), deadline_s=START) as group,
    ):
        seen = group.call_all("where")
        names = ("RANK", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
        assert [[each[name] for name in names] for each in seen] == [
            ["0", "0", "0", "2", "4"], ["1", "0", "1", "2", "4"], ["2", "1", "0", "2", "4"], ["3", "1", "1", "2", "4"],
        ]  # fmt: skip
        nodes = [place.node_id for place in group.places]
        assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
        assert {each["MASTER_ADDR"] for each in seen} == {group.places[0].address} == {session.nodes()[0].address}
        devices = [each["CUDA_VISIBLE_DEVICES"] for each in seen]
        assert sorted(devices[:2]) == sorted(devices[2:]) == ["0", "1"]
        assert group.call_all("all_reduce", 1.0) == [1111.0] * 4
        _check_engines_beside_the_ranks(reservation, group)
        pids = [place.pid for place in group.places]
    assert gone(pids)


def _check_engines_beside_the_ranks(reservation, group):
    """Two engines of two ranks each, on the GPUs of the ranks; a world for each engine."""
    room = Room(reservation, (0, 1, 2, 3), share=0.5)
    with RayGroup(Ranked, ["gloo"], reservation=room, deadline_s=START, ranks_together=2) as engines:
        mine, its = engines.call_all("where"), group.call_all("where")
        assert [each["CUDA_VISIBLE_DEVICES"] for each in mine] == [each["CUDA_VISIBLE_DEVICES"] for each in its]
        assert [(each["RANK"], each["WORLD_SIZE"], each["GROUP_RANK"]) for each in mine] == [
            ("0", "2", "0"), ("1", "2", "0"), ("0", "2", "0"), ("1", "2", "0"),
        ]  # fmt: skip
        assert len({each["MASTER_PORT"] for each in mine}) == 2
        assert engines.call_all("all_reduce", 1.0) == [11.0] * 4
        with pytest.raises(WorkerError, match=r"rank 3 .*did not take part in collective .* for which rank 2 waited"):
            engines.call_each("all_reduce_or_leave", [(1.0,), (1.0,), (1.0,), (None,)], deadline_s=2.0)


def test_engines_of_their_own_have_the_gpus_that_do_not_train(session):
    with Reservation(session, 4, gpus_per_worker=1, ranks_per_node=2) as reservation:
        policy, engines = Room(reservation, (0, 1), 1.0), Room(reservation, (2, 3), 1.0)
        with (
            RayGroup(Ranked, reservation=policy, deadline_s=START) as training,
            RayGroup(Ranked, reservation=engines, deadline_s=START) as generating,
        ):
            assert {place.node_id for place in training.places} == {reservation.slots[0].node_id}
            assert {place.node_id for place in generating.places} == {reservation.slots[2].node_id}
            assert sorted(each["CUDA_VISIBLE_DEVICES"] for each in generating.call_all("where")) == ["0", "1"]
            assert [each["LOCAL_RANK"] for each in generating.call_all("where")] == ["0", "1"]
