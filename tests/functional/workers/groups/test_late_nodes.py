"""A cluster whose nodes come up one after another."""

import pytest
from ray.cluster_utils import Cluster

from grpo.errors import WorkerError
from grpo.workers.groups.ray_session import RaySession
from grpo.workers.groups.reservation import Reservation

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300), pytest.mark.xdist_group("ray-own")]


class JoinsLate:
    """A session whose cluster gets its second node after it was asked once."""

    def __init__(self, session, add):
        self.is_local, self._session, self._add, self.asked = False, session, add, 0

    @property
    def lost(self):
        return self._session.lost

    def nodes(self):
        self.asked += 1
        if self.asked == 2:
            self._add()
        return self._session.nodes()


def test_nodes_that_come_up_late_are_waited_for():
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        with RaySession(address=cluster.address) as joined:
            late = JoinsLate(joined, lambda: cluster.add_node(num_cpus=2))
            with pytest.raises(WorkerError, match=r"too small.*has 2 CPU.*\(2 nodes were waited for, 0 s\)"):
                Reservation(joined, 4, ranks_per_node=2, nodes=2)
            with Reservation(late, 4, ranks_per_node=2, nodes=2, join_deadline_s=60.0) as reservation:
                assert [slot.node_rank for slot in reservation.slots] == [0, 0, 1, 1]
                assert late.asked > 2  # once as it was, until the second had come, and then for room
    finally:
        cluster.shutdown()
