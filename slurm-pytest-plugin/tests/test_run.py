import json

import pytest
from fakes import LIMITS, FakeClock, FakeCluster
from slurm_pytest_plugin import Case, Run, Seen
from slurm_pytest_plugin.ledger import Entry, Ledger, LedgerError
from slurm_pytest_plugin.run import Site

PENDING = Seen("PENDING", "Priority")


def running(nodes="n1,n2", elapsed=5.0):
    return Seen("RUNNING", "", nodes, elapsed)


def done(elapsed=10.0):
    return Seen("COMPLETED", "", "n1,n2", elapsed)


def leave(**result):
    """What a job writes, one dict or a list of them, one a submission."""

    def write(folder, number):
        folder.joinpath("result.json").write_text(json.dumps({"stage": "done", **result}))

    return write


def begin(tmp_path, cluster, *cases, site=None, limits=LIMITS):
    clock, said = FakeClock(), []
    run = Run(cluster, tmp_path / "r1", cases, limits=limits, site=site, say=said.append, clock=clock.clock())
    (tmp_path / "r1").mkdir(exist_ok=True)
    run.start()
    return run, said, clock


def test_all_are_submitted_before_any_is_waited_for_and_asked_for_at_once(tmp_path):
    cluster = FakeCluster(
        {"a": [[PENDING, running(), done()]], "b": [[running(), done()]]},
        on_submit={"a": leave(exit_code=0), "b": leave(exit_code=0)},
    )
    run, said, _ = begin(tmp_path, cluster, Case("a", "echo a", gpus_per_node=8, nodes=2), Case("b", "echo b"))
    assert [request.case.id for request in cluster.requests] == ["a", "b"]
    assert cluster.questions == []
    outcome = run.wait("a")
    assert outcome.passed
    assert (outcome.jobs, outcome.nodes, outcome.queued, outcome.ran) == (("101",), "n1,n2", 0.0, 10.0)
    assert outcome.gpu_hours == pytest.approx(16 * 10 / 3600)
    assert cluster.questions[0] == ["101", "102"]
    asked = len(cluster.questions)
    assert run.wait("b").passed
    assert len(cluster.questions) == asked  # b had its end meanwhile
    assert any(line == "a: job 101: PENDING Priority" for line in said)
    assert cluster.cancelled == []


def test_a_step_that_failed_under_a_script_that_ended_well(tmp_path):
    cluster = FakeCluster({"a": [[done()]]}, on_submit={"a": leave(exit_code=1, stage="trainer")})
    run, _, _ = begin(tmp_path, cluster, Case("a", ""))
    assert run.wait("a").failure == "crash"


def test_an_end_that_a_requeue_takes_back_is_none(tmp_path):
    states = [running(), Seen("NODE_FAIL", "", "n1,n2", 7), Seen("PENDING", "BeginTime"), running("n3", 3), done(4)]
    cluster = FakeCluster({"a": [states]}, on_submit={"a": leave(exit_code=0)})
    run, _, _ = begin(tmp_path, cluster, Case("a", "", max_restarts=1))
    outcome = run.wait("a")
    assert outcome.passed
    assert outcome.jobs == ("101",)
    assert outcome.ran == 7 + 4


def test_a_fault_of_the_infrastructure_is_tried_on_other_nodes_in_a_new_folder(tmp_path):
    failed = Seen("NODE_FAIL", "", "n1,n2", 9)
    cluster = FakeCluster(
        {"a": [[running(), failed], [failed], [done()]]},
        on_submit={"a": lambda folder, number: number == 3 and leave(exit_code=0)(folder, number)},
        bad=("n2",),
    )
    run, _, _ = begin(tmp_path, cluster, Case("a", ""))
    outcome = run.wait("a")
    assert outcome.passed
    assert [request.exclude for request in cluster.requests] == [(), ("n2",), ("n2",)]
    assert [request.script.parent.name for request in cluster.requests] == ["attempt-1", "attempt-2", "attempt-3"]
    assert (outcome.attempts, outcome.jobs, outcome.ran) == (3, ("101", "102", "103"), 28.0)


def test_it_is_tried_twice_at_most(tmp_path):
    failed = Seen("BOOT_FAIL", "", "n1")
    cluster = FakeCluster({"a": [[failed]] * 4})
    run, _, _ = begin(tmp_path, cluster, Case("a", ""))
    outcome = run.wait("a")
    assert (outcome.failure, outcome.attempts, len(cluster.requests)) == ("infra", 3, 3)


def test_nodes_that_the_job_itself_blames_and_no_others_are_excluded(tmp_path):
    fault = leave(exit_code=1, stage="canary", failure="infra", exclude=["n7"])
    cluster = FakeCluster(
        {"a": [[Seen("FAILED", "", "n6,n7")], [done()]]},
        on_submit={"a": lambda folder, number: (fault if number == 1 else leave(exit_code=0))(folder, number)},
    )
    run, _, _ = begin(tmp_path, cluster, Case("a", ""))
    assert run.wait("a").excluded == ("n7",)


def test_where_there_are_no_other_nodes_the_same_are_taken_and_that_is_said(tmp_path):
    cluster = FakeCluster(
        {"a": [[Seen("NODE_FAIL", "", "n1,n2")], [done()]]},
        on_submit={"a": leave(exit_code=0)},
        refuse=["", "sbatch: Requested node configuration is not available", ""],
    )
    run, said, _ = begin(tmp_path, cluster, Case("a", ""))
    assert run.wait("a").passed
    assert [request.exclude for request in cluster.requests] == [(), ()]
    assert any("there are no other nodes" in line for line in said)


def test_other_failures_are_not_tried_again(tmp_path):
    cluster = FakeCluster({"a": [[Seen("FAILED", "", "n1")]]}, on_submit={"a": leave(exit_code=2)})
    run, _, _ = begin(tmp_path, cluster, Case("a", ""))
    assert run.wait("a").failure == "crash"
    assert len(cluster.requests) == 1


def test_a_job_that_saved_is_started_again_in_its_folder(tmp_path):
    cluster = FakeCluster(
        {"a": [[Seen("FAILED", "", "n1", 60)], [done(20)]]},
        on_submit={"a": lambda folder, number: leave(exit_code=85 if number == 1 else 0)(folder, number)},
    )
    run, _, _ = begin(tmp_path, cluster, Case("a", "", requeue_exit_code=85, max_restarts=1))
    outcome = run.wait("a")
    assert outcome.passed
    assert {request.script.parent.name for request in cluster.requests} == {"attempt-1"}
    assert (outcome.restarts, outcome.ran) == (1, 80.0)


def test_a_job_that_can_never_start_fails_at_once_and_is_cancelled(tmp_path):
    cluster = FakeCluster({"a": [[Seen("PENDING", "PartitionNodeLimit")]]})
    run, _, clock = begin(tmp_path, cluster, Case("a", ""))
    outcome = run.wait("a")
    assert (outcome.failure, outcome.state, clock.time) == ("queue", "PENDING", 0.0)
    assert cluster.cancelled == ["101"]


def test_the_wait_in_the_queue_has_an_end(tmp_path):
    cluster = FakeCluster({"a": [[PENDING]]})
    run, _, clock = begin(tmp_path, cluster, Case("a", ""))
    outcome = run.wait("a")
    assert outcome.failure == "queue"
    assert 100 < clock.time < 103
    assert outcome.queued > 100
    assert cluster.cancelled == ["101"]


def test_a_job_that_the_scheduler_does_not_end(tmp_path):
    cluster = FakeCluster({"a": [[running(elapsed=90)]]})
    run, _, _ = begin(tmp_path, cluster, Case("a", "", time_limit="00:01:00"))
    assert run.wait("a").failure == "timeout"
    assert cluster.cancelled == ["101"]


def test_a_job_that_the_scheduler_forgot_is_what_its_result_says(tmp_path):
    cluster = FakeCluster({"a": [[running(), None]], "b": [[None]]}, on_submit={"a": leave(exit_code=0)})
    run, _, _ = begin(tmp_path, cluster, Case("a", ""), Case("b", ""))
    assert run.wait("a").passed
    assert run.wait("b").failure == "unknown"


def test_a_refused_request_is_a_failure_of_its_case_alone(tmp_path):
    cluster = FakeCluster(
        {"b": [[done()]]},
        on_submit={"b": leave(exit_code=0)},
        refuse=["sbatch: Memory specification can not be satisfied"],
    )
    run, _, _ = begin(tmp_path, cluster, Case("a", ""), Case("b", ""))
    outcome = run.wait("a")
    assert (outcome.failure, outcome.jobs) == ("queue", ())
    assert "Memory specification" in outcome.sentence
    assert run.wait("b").passed


def test_a_scheduler_out_of_reach_is_asked_again_for_a_while(tmp_path):
    cluster = FakeCluster({"a": [[running(), done()]]}, on_submit={"a": leave(exit_code=0)})
    run, said, clock = begin(tmp_path, cluster, Case("a", ""))
    run.tick()
    cluster.down = True
    for _ in range(20):
        run.tick()
        clock.pause(1)
    cluster.down = False
    assert run.wait("a").passed
    assert sum("asking again" in line for line in said) == 1
    cluster = FakeCluster({"b": [[running()]]})
    run, _, clock = begin(tmp_path, cluster, Case("b", ""))
    cluster.down = True
    outcome = run.wait("b")
    assert outcome.failure == "unknown"
    assert "has not answered" in outcome.message
    assert cluster.cancelled == []  # it can be waited for again
    assert 30 < clock.time < 33


def test_what_cannot_be_submitted_now_is_submitted_when_the_scheduler_is_back(tmp_path):
    cluster = FakeCluster({"a": [[done()]]}, on_submit={"a": leave(exit_code=0)})
    cluster.down = True
    run, _, clock = begin(tmp_path, cluster, Case("a", ""))
    run.tick()
    clock.pause(5)
    assert cluster.requests == []
    cluster.down = False
    assert run.wait("a").passed


def test_no_more_jobs_at_a_time_than_allowed(tmp_path):
    cluster = FakeCluster(
        {name: [[running(), done()]] for name in "abc"}, on_submit={name: leave(exit_code=0) for name in "abc"}
    )
    run, _, _ = begin(tmp_path, cluster, *(Case(name, "") for name in "abc"), site=Site(max_jobs=2))
    assert len(cluster.requests) == 2
    assert run.wait("c").passed
    assert all(len(asked) <= 2 for asked in cluster.questions)


def test_cancelling_ends_what_this_run_has_open_and_nothing_else(tmp_path):
    cluster = FakeCluster({"a": [[done()]], "b": [[running()]], "c": [[PENDING]]}, on_submit={"a": leave(exit_code=0)})
    run, _, _ = begin(tmp_path, cluster, *(Case(name, "") for name in "abc"))
    run.wait("a")
    assert run.cancel() == ["102", "103"]
    assert cluster.cancelled == ["102", "103"]
    assert run.cancel() == []


def test_a_second_run_finds_the_jobs_of_the_first(tmp_path):
    cluster = FakeCluster(
        {"a": [[running(), running(), running(), done()]], "b": [[Seen("NODE_FAIL", "", "n1")], [running(), done()]]},
        on_submit={"a": leave(exit_code=0), "b": leave(exit_code=0)},
    )
    cases = [Case("a", ""), Case("b", "")]
    first, _, _ = begin(tmp_path, cluster, *cases)
    for _ in range(3):
        first.tick()
    submitted = len(cluster.requests)
    assert submitted == 3
    second, said, _ = begin(tmp_path, cluster, *cases)
    assert second.wait("a").passed
    outcome = second.wait("b")
    assert (outcome.passed, outcome.attempts, outcome.jobs) == (True, 2, ("102", "103"))
    assert len(cluster.requests) == submitted
    assert "a: job 101: found again" in said


def test_a_job_whose_id_was_not_written_any_more_is_found_by_its_tag(tmp_path):
    cluster = FakeCluster({"a": [[done()]], "b": [[done()]]}, on_submit={name: leave(exit_code=0) for name in "ab"})
    first, _, _ = begin(tmp_path, cluster, Case("a", ""))
    ledger = tmp_path / "r1" / "jobs.jsonl"
    intent = ledger.read_text().splitlines(keepends=True)[0]
    # The first pytest ended between the submission and its note, and in the midst of writing another line.
    ledger.write_text(intent + intent.replace('"a"', '"b"')[:30])
    second, _, _ = begin(tmp_path, cluster, Case("a", ""), Case("b", ""))
    assert second.jobs["a"].job_id == "101"
    assert [request.case.id for request in cluster.requests] == ["a", "b"]
    del first


def test_a_run_goes_on_where_it_was_begun(tmp_path):
    folder = tmp_path / "r1"
    folder.mkdir()
    Ledger(folder).write(Entry("a", 1, 0, "local", (), "local-1"))
    with pytest.raises(LedgerError, match="begun with --executor local, not slurm"):
        begin(tmp_path, FakeCluster(), Case("a", ""))
    (folder / "jobs.jsonl").write_text("{}\n")
    with pytest.raises(LedgerError, match=r"jobs\.jsonl:1"):
        begin(tmp_path, FakeCluster(), Case("a", ""))
