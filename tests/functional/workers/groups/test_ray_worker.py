"""A worker process: deadlines, its own tracebacks, nothing left behind."""

import os
from collections.abc import Iterator

import psutil
import pytest
import ray

from grpo.errors import GenerationError, WorkerError
from grpo.workers.groups.ray_worker import RayWorker
from tests.support.worker_objects import Obedient

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.xdist_group("ray")]
START = 90.0


@pytest.fixture
def worker() -> Iterator[RayWorker]:
    started = RayWorker(Obedient, 40, timeout_s=START, environment={"GIVEN_TO_WORKER": "yes"})
    yield started
    started.kill()


def descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_calls_run_in_another_process_and_errors_come_back_with_its_traceback(worker):
    assert worker.call("add", 2) == 42
    assert worker.call("pid") != os.getpid()
    with pytest.raises(GenerationError, match="I would rather not"):
        worker.call("refuse")
    with pytest.raises(ZeroDivisionError, match="_deeper_down"):
        worker.call("stumble")
    assert worker.call("add", 3) == 43


def test_a_call_past_its_deadline_kills_the_worker(worker):
    with pytest.raises(WorkerError, match=r"hang did not return within 0.5 s.*cluster.worker_timeout_s") as caught:
        worker.call("hang", timeout_s=0.5)
    assert " in hang" in str(caught.value)
    assert not worker.alive
    with pytest.raises(WorkerError, match="after the worker had ended"):
        worker.call("add", 1)


def test_a_worker_that_dies_is_an_error(worker):
    with pytest.raises(WorkerError, match="Obedient died during die"):
        worker.call("die")
    assert not worker.alive


def test_a_call_may_take_longer_than_the_workers_own_limit(worker):
    worker._timeout_s = 0.01
    assert worker.call("slow", 0.5, timeout_s=START) == "done"


def test_an_error_at_the_start_is_the_objects_own_and_leaves_nothing():
    before = descendants()
    with pytest.raises(GenerationError, match="no such engine"):
        RayWorker(Obedient, 1, "no such engine", timeout_s=START)
    assert not ray.is_initialized()
    _assert_gone(descendants() - before)


def test_secrets_of_the_environment_stay_here_and_no_process_is_left(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "planted-secret")
    before = descendants()
    started = RayWorker(Obedient, 1, timeout_s=START, environment={"GIVEN_TO_WORKER": "yes"})
    seen = started.call("environment")
    assert seen["GIVEN_TO_WORKER"] == "yes"
    assert "planted-secret" not in seen.values()
    assert os.environ["WANDB_API_KEY"] == "planted-secret"
    spawned = descendants() - before
    assert spawned
    for pid in spawned:
        assert "planted-secret" not in psutil.Process(pid).environ().values()
    listening = {
        connection.laddr.ip
        for pid in spawned
        for connection in psutil.Process(pid).net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    started.kill()
    started.kill()
    _assert_gone(spawned)
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, listening


def _assert_gone(pids: set[int]) -> None:
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive
