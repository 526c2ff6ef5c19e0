"""What a rank's process answers; here in this process."""

import pytest

from grpo.errors import GenerationError
from grpo.workers.groups import rank_host
from grpo.workers.groups.rank_host import RankHost, worker_stacks
from grpo.workers.groups.rendezvous import Membership
from tests.support.group_workers import Ranked

LIMIT = 100.0
DUMP = f"""Thread 0x01 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/worker.py", line 36 in step
  File "{rank_host.__file__}", line 89 in call
  File "/site-packages/ray/_private/function_manager.py", line 740 in actor_method_executor

Thread 0x02 (most recent call first):
  <no Python frame>

Current thread 0x03 (most recent call first):
  File "{rank_host.__file__}", line 93 in diagnose
  File "/site-packages/ray/_private/function_manager.py", line 740 in actor_method_executor

Thread 0x04 (most recent call first):
  File "/lib/python3.11/threading.py", line 327 in wait
  File "/home/me/worker.py", line 77 in write_behind
  File "/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x05 (most recent call first):
  File "/site-packages/ray/_private/worker.py", line 1066 in main_loop
"""


@pytest.fixture
def host(monkeypatch):
    membership = Membership(2, 3, 1, 0, 1, "10.0.0.1", 29500)
    for name in membership.environment():
        monkeypatch.setenv(name, "put back afterwards")
    started = RankHost()
    assert started.start(membership, Ranked, (), LIMIT).failure is None
    return started


def test_the_worker_knows_its_rank_and_answers(host):
    answer = host.call("add", (1, 2), LIMIT)
    assert answer.value == (2, 3)
    assert answer.failure is None
    assert 0 <= answer.seconds < 5


def test_an_exception_comes_with_the_workers_own_frames_alone(host):
    failure = host.call("stumble_at", (2,), LIMIT).failure
    assert failure.summary == "ZeroDivisionError: divided by nothing"
    assert "_deeper_down" in failure.traceback
    assert "rank_host" not in failure.traceback
    assert isinstance(failure.error, ZeroDivisionError)
    assert not failure.in_collective


def test_an_exception_that_cannot_be_sent_is_told(host):
    failure = host.call("raise_unpicklable", (), LIMIT).failure
    assert failure.error is None
    assert failure.summary.endswith("Local: cannot be sent")


def test_errors_inside_torch_distributed_are_known_as_such(host):
    failure = host.call("all_reduce", (1.0,), LIMIT).failure  # there is no process group
    assert failure.in_collective
    assert "all_reduce" in failure.traceback


def test_an_unknown_method_is_a_failure(host):
    assert "no_such_method" in host.call("no_such_method", (), LIMIT).failure.summary


def test_an_error_at_the_start_is_a_failure(monkeypatch):
    for name, text in Membership(1, 2, 0, 1, 2, "127.0.0.1", 1).environment().items():
        monkeypatch.setenv(name, text)
    failure = RankHost().start(Membership(1, 2, 0, 1, 2, "127.0.0.1", 1), Ranked, (None, 1.0, 1), LIMIT).failure
    assert isinstance(failure.error, GenerationError)


def test_a_diagnosis_without_process_groups_has_stacks_alone(host):
    diagnosis = host.diagnose()
    assert diagnosis.collectives == {}
    assert "test_rank_host" not in diagnosis.stacks  # of this very thread, what lies below the host


def test_stacks_are_those_of_threads_that_run_the_workers_code():
    assert worker_stacks(DUMP).split("\n") == [
        "Thread 0x01 (most recent call first):",
        '  File "/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce',
        '  File "/home/me/worker.py", line 36 in step',
        "Thread 0x04 (most recent call first):",
        '  File "/lib/python3.11/threading.py", line 327 in wait',
        '  File "/home/me/worker.py", line 77 in write_behind',
        '  File "/lib/python3.11/threading.py", line 1002 in _bootstrap',
    ]
