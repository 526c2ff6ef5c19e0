"""`cluster.ray_address` of a cluster that is not there; a Ray of this process would be taken instead of it."""

import pytest

from grpo.errors import WorkerError
from tests.support.small_run import run_small

pytestmark = pytest.mark.xdist_group("ray-own")


def test_an_address_without_a_cluster_ends_the_run_at_once(tmp_path):
    with pytest.raises(WorkerError, match=r"cluster.ray_address=127.0.0.1:1: no Ray cluster answers there"):
        run_small(tmp_path / "run", "cluster.launcher=ray", "cluster.ray_address=127.0.0.1:1")
