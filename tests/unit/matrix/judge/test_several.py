from dataclasses import replace
from itertools import combinations_with_replacement, permutations

import pytest

from grpo.errors import MatrixError
from grpo.matrix.judge import JobOutcome, judge_runs
from tests.support.matrix import (
    CONFIG,
    PARTITION,
    SECONDS,
    canary,
    case,
    evidence,
    measured,
    nodes,
    record,
    with_rates,
)


def run(name, refit=14.0, host="node0", **changes):
    records = [record(step, {"refit": refit}) for step in range(1, 26)]
    seen = evidence(records, run=name, nodes=[{**nodes()[0], "host": host}], seconds=3600.0)
    return replace(seen, **changes)


def judged(*runs, reference=None, partition=PARTITION, the_case=None, gpu_hours_left=None):
    return judge_runs(
        runs, the_case or case(), reference or measured(), partition_name="here", partition=partition,
        expected_config=CONFIG, gpu_hours_left=gpu_hours_left,
    )  # fmt: skip


SLOW = 40.0


def test_a_run_within_its_band_asks_for_nothing():
    assert (judged(run("a")).outcome, judged(run("a")).rerun) == ("pass", None)


@pytest.mark.parametrize(("refit", "outcome"), [(SLOW, "fail"), (7.0, "faster")])
def test_outside_the_band_two_more_runs_on_other_nodes_are_asked_for(refit, outcome):
    verdict = judged(run("a", refit))
    assert verdict.outcome == outcome
    assert (verdict.rerun.rule, verdict.rerun.runs, verdict.rerun.exclude) == (4, 2, ("node0",))
    assert verdict.rerun.gpu_hours == 2 * 8 * 1.0
    assert "2 more runs asked for on other nodes than node0" in verdict.sentence
    assert verdict.to_json()["rerun"]["runs"] == 2


def test_the_second_of_them_asks_for_the_third():
    verdict = judged(run("a", SLOW), run("b", host="node1"))
    assert (verdict.outcome, verdict.rerun.runs) == ("fail", 1)
    assert verdict.rerun.exclude == ("node0", "node1")


@pytest.mark.parametrize("refits", list(combinations_with_replacement((7.0, 14.0, SLOW), 3)))
def test_the_median_of_three_decides_in_any_order_and_never_the_best(refits):
    outcomes = set()
    for order in permutations(range(3)):
        verdict = judged(*(run(f"r{at}", refits[at], f"node{at}") for at in order))
        assert verdict.rerun is None
        assert len(verdict.runs) == 3
        outcomes.add(verdict.outcome)
    assert outcomes == {{7.0: "faster", 14.0: "pass", SLOW: "fail"}[refits[1]]}


def test_a_run_of_other_nodes_keeps_its_own_figure():
    # Pooled, the 20 slow steps of one node and the 5 of another would outvote the rest.
    verdict = judged(run("a", 10 * SLOW), run("b", 14.0, "node1"), run("c", 14.0, "node2"))
    assert verdict.outcome == "pass"
    assert verdict.values["timing/refit"] == 14.0


def test_the_verdict_of_three_says_what_explains_it():
    verdict = judged(run("a", SLOW), run("b", SLOW, "node1"), run("c", 14.0, "node2"))
    assert verdict.attribution[0].phase == "refit"
    assert round(sum(share.seconds for share in verdict.attribution), 6) == SLOW - SECONDS["refit"]
    assert "median of 3 runs" in verdict.sentence
    assert "same nodes" not in verdict.sentence
    assert "some on the same nodes" in judged(run("a", SLOW), run("b", SLOW), run("c", 14.0, "node2")).sentence


def test_a_wrong_result_is_not_outvoted():
    wrong = run("b", host="node1", metrics=[record(step, **{"train/loss": float("nan")}) for step in range(1, 26)])
    verdict = judged(run("a"), wrong, run("c", host="node2"))
    assert (verdict.outcome, verdict.failure, verdict.rerun) == ("fail", "correctness", None)


def test_no_rerun_beyond_the_budget_and_the_failure_stands():
    verdict = judged(run("a", SLOW), gpu_hours_left=15.9)
    assert (verdict.outcome, verdict.rerun) == ("fail", None)
    assert "takes 16 GPU-hours, and 15.9 are left" in verdict.sentence
    assert judged(run("a", SLOW), gpu_hours_left=16.0).rerun is not None


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "no run"),
        ([run("a"), run("a")], "a is given twice"),
        ([run(name) for name in "abcd"], "4 runs: a verdict is the median of 3"),
    ],
)
def test_what_is_no_set_of_reruns_is_refused(runs, message):
    with pytest.raises(MatrixError, match=message):
        judged(*runs)


def test_a_bad_machine_is_retried_without_its_node_twice_at_most():
    bad = canary(matmul=700.0)
    partition = with_rates(bf16_matmul_tflops=800.0)
    runs = [run(name, SLOW, f"node{at}", canary=bad) for at, name in enumerate("abc")]
    for count in (1, 2):
        verdict = judged(*runs[:count], partition=partition)
        assert (verdict.outcome, verdict.failure, verdict.exit_code()) == ("not judged", "infra", 2)
        assert (verdict.rerun.rule, verdict.rerun.runs) == (6, 1)
        assert verdict.rerun.exclude == ("node0",)  # as the canary names it
    verdict = judged(*runs, partition=partition)
    assert (verdict.outcome, verdict.rerun) == ("not judged", None)
    assert "retried 2 times" in verdict.sentence


def test_spoilt_runs_are_no_part_of_the_three():
    partition = with_rates(bf16_matmul_tflops=800.0)
    good = [run(name, 14.0, f"node{name}", canary=canary(hosts=(f"node{name}",))) for name in "bcd"]
    runs = [run("a", SLOW, canary=canary(matmul=700.0)), *good]
    assert judged(*runs, partition=partition).outcome == "pass"
    verdict = judged(runs[0], run("b", SLOW, canary=canary()), partition=partition)
    assert (verdict.outcome, verdict.rerun.rule, verdict.rerun.runs) == ("fail", 4, 2)


def test_a_scheduler_that_lost_a_node_is_retried_and_a_crash_is_not():
    lost = evidence([], state="not started", job=JobOutcome("NODE_FAIL"), run=None, nodes=[])
    verdict = judged(lost)
    assert (verdict.failure, verdict.rerun.rule, verdict.rerun.runs) == ("infra", 7, 1)
    crashed = evidence([], state="not started", job=JobOutcome("FAILED", exit_code=1, stage="trainer"), run=None)
    assert judged(crashed).rerun is None
    assert judged(lost, run("b")).outcome == "pass"
