"""A Ray of its own: what its processes know, where they listen, and that none is left, though its head is killed."""

import os

import psutil
import pytest

from grpo.errors import WorkerError
from grpo.workers.groups.head import HeadLostError
from grpo.workers.groups.ray_group import RayGroup
from grpo.workers.groups.ray_session import RaySession
from grpo.workers.groups.reservation import Reservation
from tests.functional.workers.groups.conftest import START, gone, told
from tests.support.group_workers import Ranked

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.xdist_group("ray-own")]


def descendants() -> set[psutil.Process]:
    return {*psutil.Process().children(recursive=True)}


def kill_the_head():
    (head,) = [each for each, name in told(descendants(), lambda each: (each, each.name())) if name == "gcs_server"]
    head.kill()


def test_secrets_stay_here_and_without_its_head_the_run_ends_with_that_cause_and_no_process(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "planted-secret")
    before = descendants()
    with RaySession() as session, Reservation(session, 1) as reservation:
        with RayGroup(
            Ranked, reservation=reservation, deadline_s=START, environment={"GIVEN_TO_WORKER": "yes"}
        ) as group:
            (seen,) = group.call_all("where")
            assert seen["GIVEN_TO_WORKER"] == "yes"
            assert psutil.Process(int(seen["pid"])).nice() == psutil.Process().nice()  # or others starve it
            assert "planted-secret" not in seen.values()
            assert os.environ["WANDB_API_KEY"] == "planted-secret"
            spawned = descendants() - before
            environments = told(spawned, psutil.Process.environ)
            assert len(environments) >= 3  # Ray's head, its raylet and the rank are always there
            for environment in environments:
                assert "planted-secret" not in environment.values()
            listening = {
                connection.laddr.ip
                for connections in told(spawned, lambda each: each.net_connections(kind="tcp"))
                for connection in connections
                if connection.status == psutil.CONN_LISTEN
            }
            kill_the_head()
            with pytest.raises(
                HeadLostError,
                match=r"Ray's head .* 3 s .*Ranked: slow had no answer from rank 0 of 1; all ranks were ended",
            ) as caught:
                group.call_all("slow", 60.0)
            assert caught.value.exit_code == 1
            assert gone([int(seen["pid"])])
            with pytest.raises(WorkerError, match=r"add was called after the group had ended: Ray's head"):
                group.call_all("add", 1, 2)
        session.close()
        session.close()
    assert gone([each.pid for each in spawned])
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, listening
