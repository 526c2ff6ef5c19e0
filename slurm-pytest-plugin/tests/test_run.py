import json

import pytest
from fakes import LIMITS, FakeClock, FakeCluster
from slurm_pytest_plugin import Case, More, Run, Seen
from slurm_pytest_plugin.attempts import read_attempts
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


def thrice(outcomes):
    """The rule "two more runs, on other nodes": of a run that is not the third."""
    return More("outside the band") if len(outcomes) < 3 else None


def test_a_case_is_run_again_on_other_nodes_as_often_as_it_asks_for(tmp_path):
    nodes = [Seen("COMPLETED", "", f"n{number}", 36.0) for number in (1, 2, 3)]
    cluster = FakeCluster({"a": [[each] for each in nodes]}, on_submit={"a": leave(exit_code=0)})
    case = Case("a", "", gpus_per_node=10, more=thrice, max_runs=3)
    run, said, _ = begin(tmp_path, cluster, case)
    outcome = run.wait("a")
    assert [request.exclude for request in cluster.requests] == [(), ("n1",), ("n1", "n2")]
    assert [each.nodes for each in (*outcome.earlier, outcome)] == ["n1", "n2", "n3"]
    assert [each.folder.name for each in outcome.earlier] == ["attempt-1", "attempt-2"]
    assert outcome.passed
    assert (outcome.attempts, outcome.why, outcome.gpu_hours) == (3, "outside the band", pytest.approx(0.3))
    assert "a: outside the band: again, without n1" in said
    kept = json.loads((tmp_path / "r1" / "a" / "attempts.json").read_text())
    assert (kept["final"], kept["failure"], kept["gpu_hours"]) == (True, None, 0.3)
    assert [each["nodes"] for each in kept["attempts"]] == ["n1", "n2", "n3"]
    assert outcome.properties()["slurm_runs"] == "3"


def test_no_more_runs_than_the_case_allows(tmp_path):
    cluster = FakeCluster({"a": [[done()]] * 3}, on_submit={"a": leave(exit_code=0)})
    run, _, _ = begin(tmp_path, cluster, Case("a", "", more=lambda _: More("again"), max_runs=2))
    outcome = run.wait("a")
    assert (len(cluster.requests), outcome.message) == (2, "again: not run again, since there were 2 runs")


def test_runs_that_the_machine_spoilt_are_counted_apart(tmp_path):
    def more(outcomes):
        return More("slow node", ("n1",), elsewhere=False, infra=True) if outcomes[-1].nodes == "n1" else None

    states = [[Seen("NODE_FAIL", "", "n0")], [Seen("COMPLETED", "", "n1")], [Seen("COMPLETED", "", "n2")]]
    cluster = FakeCluster(
        {"a": states},
        on_submit={"a": lambda folder, number: number > 1 and leave(exit_code=0)(folder, number)},
        bad=("n0",),
    )
    run, _, _ = begin(tmp_path, cluster, Case("a", "", more=more))
    outcome = run.wait("a")
    assert outcome.passed
    assert [request.exclude for request in cluster.requests] == [(), ("n0",), ("n0", "n1")]
    # What came to nothing is no run; what ran on a bad machine is one, and whoever asked knows it.
    assert [each.nodes for each in outcome.earlier] == ["n1"]
    cluster = FakeCluster({"b": [[Seen("COMPLETED", "", "n1")]] * 4}, on_submit={"b": leave(exit_code=0)})
    run, _, _ = begin(tmp_path, cluster, Case("b", "", more=more, infra_retries=2))
    outcome = run.wait("b")
    assert len(cluster.requests) == 3
    assert outcome.message == "slow node: not run again, since the machine was at fault 3 times"


def test_what_would_exceed_the_gpu_hours_is_not_run(tmp_path):
    hour = Seen("COMPLETED", "", "n1", 3600.0)
    cluster = FakeCluster(
        {"a": [[hour]] * 3, "b": [[hour]], "c": [[Seen("NODE_FAIL", "", "n1", 3600.0)]] * 3},
        on_submit={name: leave(exit_code=0) for name in "ab"},
    )
    cases = [Case("a", "", gpus_per_node=2, more=thrice, max_runs=3), Case("b", "", gpus_per_node=1),
             Case("c", "", gpus_per_node=4)]  # fmt: skip
    run, _, _ = begin(tmp_path, cluster, *cases, site=Site(max_gpu_hours=9.5))
    # 7 are spent by one run of each: 2 more are there for a, and then neither for a nor for c.
    assert run.wait("a").message == (
        "outside the band: not run again, since that takes 2.00 GPU-hours, and 0.50 are left of 9.50"
    )
    outcome = run.wait("c")
    assert (outcome.failure, outcome.attempts) == ("infra", 1)
    assert len(cluster.requests) == 4


def test_what_others_may_still_use_is_not_there_for_a_further_run(tmp_path):
    quick = Seen("COMPLETED", "", "n1", 1800.0)
    cluster = FakeCluster(
        {"a": [[quick]] * 3, "b": [[Seen("RUNNING", "", "n2", 1800.0)] * 9 + [Seen("COMPLETED", "", "n2", 3600.0)]]},
        on_submit={name: leave(exit_code=0) for name in "ab"},
    )
    cases = [Case("a", "", gpus_per_node=2, more=thrice, max_runs=3), Case("b", "", gpus_per_node=4)]
    run, _, _ = begin(tmp_path, cluster, *cases, site=Site(max_gpu_hours=5.5))
    # 1 was used by a; b has used 2 and may use 2 more: a half is left, and a run of a may take 2.
    assert run.wait("a").message == (
        "outside the band: not run again, since that takes 2.00 GPU-hours, and 0.50 are left of 5.50"
    )
    assert run.wait("b").passed


def test_a_refusal_that_is_not_for_nodes_is_no_reason_to_take_the_bad_ones_again(tmp_path):
    cluster = FakeCluster(
        {"a": [[Seen("NODE_FAIL", "", "n1,n2")], [done()]]},
        on_submit={"a": leave(exit_code=0)},
        refuse=["", "sbatch: Invalid account or account/partition combination specified"],
    )
    run, _, _ = begin(tmp_path, cluster, Case("a", ""))
    outcome = run.wait("a")
    assert (outcome.failure, outcome.excluded, len(cluster.requests)) == ("queue", ("n1", "n2"), 1)
    assert "no others" not in outcome.message


def test_where_there_are_no_other_nodes_a_further_run_takes_the_same_and_says_so(tmp_path):
    cluster = FakeCluster(
        {"a": [[done()], [done()]], "b": [[done()], [Seen("PENDING", "BadConstraints")], [done()]]},
        on_submit={name: leave(exit_code=0) for name in "ab"},
        refuse=["", "", "Requested node configuration is not available"],
    )
    more = {"more": lambda outcomes: More("again") if len(outcomes) < 2 else None, "max_runs": 2}
    run, _, _ = begin(tmp_path, cluster, Case("a", "", **more), Case("b", "", **more))
    for name in "ab":
        outcome = run.wait(name)
        assert outcome.passed
        assert outcome.message == "attempt 2 on the same nodes, since there are no others"
    assert [request.exclude for request in cluster.requests] == [(), (), (), ("n1", "n2"), ()]
    assert cluster.cancelled == ["104"]


def test_a_second_run_knows_the_runs_before(tmp_path):
    nodes = [Seen("COMPLETED", "", f"n{number}", 36.0) for number in (1, 2, 3)]
    cluster = FakeCluster({"a": [[each] for each in nodes]}, on_submit={"a": leave(exit_code=0)})
    case = Case("a", "", gpus_per_node=10, more=thrice, max_runs=3)
    first, _, _ = begin(tmp_path, cluster, case)
    while len(cluster.requests) < 2:
        first.tick()
    second, _, _ = begin(tmp_path, cluster, case)
    outcome = second.wait("a")
    assert [each.nodes for each in (*outcome.earlier, outcome)] == ["n1", "n2", "n3"]
    assert [each.result.exit_code for each in outcome.earlier] == [0, 0]
    assert outcome.gpu_hours == pytest.approx(0.3)
    [before, *_] = read_attempts(tmp_path / "r1" / "a", "a", 10)
    assert before.outcome == outcome.earlier[0]
    (tmp_path / "r1" / "a" / "attempts.json").write_text("{}")
    with pytest.raises(LedgerError, match=r"attempts\.json: not the attempts of a case"):
        begin(tmp_path, cluster, case)
