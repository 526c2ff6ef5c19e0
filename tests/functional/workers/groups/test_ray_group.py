"""Workers in Ray actors: their places, calls, errors and ends."""

import gc
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import ray
import torch

import grpo
from grpo.errors import GenerationError, WorkerError
from grpo.workers.groups.failures import RankError
from grpo.workers.groups.ray_group import RayGroup
from grpo.workers.groups.reservation import Reservation
from tests.functional.workers.groups.conftest import START, gone, ranks_of_this_process
from tests.support.group_workers import Ranked, references

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("ray"),
    pytest.mark.usefixtures("shared_ray"),
]


class TestWhatAGroupDoes:
    @pytest.fixture(scope="class")
    @classmethod
    def group(cls, session) -> Iterator[RayGroup]:
        with pytest.MonkeyPatch.context() as patch, Reservation(session, 4) as reservation:
            patch.setenv("WANDB_API_KEY", "planted-secret")
            with RayGroup(
                Ranked, ["gloo"], reservation=reservation, deadline_s=START, environment={"GIVEN": "yes"}
            ) as started:
                yield started
            assert gone([place.pid for place in started.places])

    def test_results_are_in_rank_order(self, group):
        assert group.world_size == 4
        assert group.call_all("add", 1, 2) == [(0, 3), (1, 3), (2, 3), (3, 3)]
        assert group.call_each("add", [(1, 2), (3, 4), (5, 6), (7, 8)]) == [(0, 3), (1, 7), (2, 11), (3, 15)]
        assert group.call_one(2, "add", 7, 8) == (2, 15)

    def test_ranks_work_together(self, group):
        assert group.call_all("all_reduce", 2.0) == [2222.0] * 4

    def test_every_rank_is_a_process_of_its_own_that_knows_its_place(self, group):
        seen = group.call_all("where")
        assert len({os.getpid(), *(int(each["pid"]) for each in seen)}) == 5
        assert [int(each["pid"]) for each in seen] == [place.pid for place in group.places]
        for rank, each in enumerate(seen):
            assert (each["RANK"], each["LOCAL_RANK"], each["WORLD_SIZE"]) == (str(rank), str(rank), "4")
            assert each["MASTER_ADDR"] == "127.0.0.1"
            assert each["MASTER_PORT"] == seen[0]["MASTER_PORT"]

    def test_processes_and_workers_are_made_once_and_nothing_is_built_for_them(self, group):
        before = group.call_all("where")
        for value in range(3):
            group.call_all("add", value, 1)
        assert group.call_all("where") == before
        for each in before:
            assert each["made"] == "1"
            assert (each["python"], each["grpo"]) == (sys.executable, grpo.__file__)

    def test_workers_see_only_what_they_are_given(self, group):
        for each in group.call_all("where"):
            assert each["GIVEN"] == "yes"
            assert "planted-secret" not in each.values()

    def test_nothing_listens_where_others_could_reach_it(self, group):
        group.call_all("all_reduce", 1.0)
        listening = {
            connection.laddr.ip
            for place in group.places
            for connection in psutil.Process(place.pid).net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening
        assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

    def test_other_calls_are_answered_beside_one_that_waits(self, group):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(group.call_beside, "wait_for_release")
            assert group.call_all("add", 1, 2) == [(0, 3), (1, 3), (2, 3), (3, 3)]
            assert not waiting.done()
            assert group.call_all("release") == [0, 1, 2, 3]
            assert waiting.result(timeout=60) == ["released"] * 4

    def test_a_failure_beside_names_its_rank_and_leaves_the_group(self, group):
        with pytest.raises(RankError, match=r"rank 2 on node .*I would rather not"):
            group.call_beside("refuse_at", 2)
        with pytest.raises(RankError, match="slow"):
            group.call_beside("slow", 5.0, deadline_s=0.1)
        assert group.call_one(2, "add", 7, 8) == (2, 15)

    def test_calls_are_counted_and_timed(self, group):
        group.dispatches.take()
        group.call_all("add", 1, 2)
        group.call_one(1, "add", 1, 2)
        taken = group.dispatches.take()
        assert taken["dispatches"] == 2
        assert 0 < taken["dispatch_overhead_seconds"] <= taken["dispatch_seconds"]


def test_a_call_may_take_longer_than_the_groups_own_limit(start):
    group = start(ranks=1)
    group._deadline_s = 0.01
    assert group.call_all("slow", 0.5, deadline_s=START) == ["done"]
    with pytest.raises(RankError, match=r"rank 0 .*: slow did not return within 0.01 s"):
        group.call_all("slow", 0.5)


def fails(group, method, *arguments, deadline_s=None) -> RankError:
    """The error of a call, after which the group and all its processes are gone."""
    pids = [place.pid for place in group.places]
    assert set(pids) == set(ranks_of_this_process())
    with pytest.raises(RankError) as caught:
        group.call_all(method, *arguments, deadline_s=deadline_s)
    assert gone(pids)
    with pytest.raises(WorkerError, match="add was called after the group had ended"):
        group.call_all("add", 1, 2)
    assert (caught.value.node, caught.value.exit_code) == ("127.0.0.1", 1)
    return caught.value


def test_a_rank_that_raises_ends_the_call_of_all(start):
    error = fails(start("gloo"), "stumble_at", 1)
    assert error.rank == 1
    assert "Ranked rank 1 on node 127.0.0.1" in str(error)
    assert "stumble_at raised ZeroDivisionError: divided by nothing" in str(error)
    assert "_deeper_down" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_an_error_for_the_user_is_told_in_one_line(start):
    error = fails(start(), "refuse_at", 1)
    assert str(error).endswith("refuse_at raised grpo.errors.GenerationError: I would rather not")
    assert isinstance(error.__cause__, GenerationError)


def test_a_rank_that_is_killed_is_named_rather_than_those_that_waited_for_it(start):
    error = fails(start("gloo"), "die_at", 1)
    assert error.rank == 1
    assert "died during die_at" in str(error)


def test_of_ranks_that_fail_together_a_dead_one_is_named_and_the_others_are_told(start):
    group = start()
    calls = {
        group._actors[0].call.remote("refuse_at", (0,)): 0,
        group._actors[1].call.remote("die_at", (1,)): 1,
    }
    ray.wait(list(calls), num_returns=2, timeout=START)
    with pytest.raises(
        RankError, match=r"rank 1 .*died during refuse_at(.|\n)*and rank 0 raised .*I would rather"
    ) as caught:
        group._collect("refuse_at", calls, START)
    assert caught.value.rank == 1


def test_a_rank_that_aborts_leaves_its_stack(start):
    error = fails(start(ranks=1), "abort")
    assert "died during abort" in str(error)
    assert "Fatal Python error: Aborted" in str(error)
    assert " in abort" in str(error)


def test_a_rank_that_skips_a_collective_is_named_when_the_others_give_up(start):
    error = fails(start("gloo", 5.0), "skip_at", 1)
    assert error.rank == 1
    assert "rank 1 did not take part in collective 1 of process group 0 (issued 0), for which rank 0" in str(error)
    assert "it has left skip_at" in str(error)
    assert "Timed out" in str(error)


def test_a_rank_that_hangs_elsewhere_is_named_at_the_deadline_with_its_stack(start):
    error = fails(start("gloo"), "hang_at", 1, deadline_s=3.0)
    assert error.rank == 1
    assert "hang_at did not return within 3 s; no answer from ranks 0, 1 of 2" in str(error)
    assert "rank 1 did not take part in collective 1" in str(error)
    assert " in _wait_elsewhere" in str(error)
    assert " in all_reduce" in str(error)


def test_the_stack_of_a_rank_that_holds_the_interpreter_is_told(start):
    error = fails(start(ranks=1), "hold_the_interpreter", deadline_s=2.0)
    assert " in hold_the_interpreter" in str(error)


def test_a_rank_that_no_one_ends_leaves_its_stacks_and_ends_itself(start):
    group = start(ranks=2)
    call = group._actors[1].call.remote("hang_at", (1,), 0.5)
    with pytest.raises(RankError) as caught:
        group._collect("hang_at", {call: 1}, START)
    assert (caught.value.rank, caught.value.exit_code) == (1, 1)
    assert "died during hang_at" in str(caught.value)
    assert " in _wait_elsewhere" in str(caught.value)
    assert gone(ranks_of_this_process())


def test_fifty_calls_hold_no_more_objects_than_five(start):
    group = start(ranks=2)
    held = []
    for count in (5, 45):
        for _ in range(count):
            group.call_all("echo", torch.zeros(100_000))
            group.call_each("echo", [(torch.zeros(100_000),)] * 2)
            group.call_one(1, "echo", torch.zeros(100_000))
        gc.collect()
        held.append((references(), *group.call_all("references")))
    assert held[1] == held[0]


def test_what_a_rank_has_started_ends_with_it(start):
    group = start(ranks=1)
    child = group.call_one(0, "start_child")
    assert psutil.pid_exists(child)
    group.shutdown()
    group.shutdown()
    assert gone([child])


def test_an_error_at_the_start_names_the_rank_and_leaves_nothing(start):
    with pytest.raises(RankError, match=r"rank 1 .*: start raised .*GenerationError: rank 1 does not like to start"):
        start(None, 1.0, 1)
    assert gone(ranks_of_this_process())


def test_a_start_that_takes_too_long_is_ended(start):
    with pytest.raises(RankError, match=r"start did not return within .* s; no answer from rank 0 of 1") as caught:
        start("sleeps", ranks=1, deadline_s=8.0)
    assert caught.value.rank == 0
    assert gone(ranks_of_this_process())
