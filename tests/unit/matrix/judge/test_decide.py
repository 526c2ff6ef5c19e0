import math
import sys
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.matrix import judge as judge_package
from grpo.matrix.judge import JobOutcome, judge_row
from grpo.matrix.judge.bands import band_of
from grpo.matrix.judge.sanity import REQUIRED
from grpo.matrix.load import load_matrix
from tests.support.matrix import (
    COLUMNS,
    CONFIG,
    SECONDS,
    case,
    evidence,
    measured,
    nodes,
    published,
    record,
    unmeasured,
    verdict,
)


def run_of(seconds, other=3.0, steps=25):
    return evidence([record(step, seconds, other) for step in range(1, steps + 1)])


def test_a_run_like_its_reference_passes():
    result = verdict(reference=measured())
    assert (result.outcome, result.failure, result.exit_code()) == ("pass", None, 0)
    assert (result.steps.judged, result.steps.warmup) == (20, 5)


def test_a_throughput_figure_is_the_median():
    records = [record(step, {"refit": 1000.0} if step > 17 else None) for step in range(1, 26)]
    assert verdict(evidence(records), reference=measured()).outcome == "pass"  # 8 of 20
    records = [record(step, {"refit": 1000.0} if step > 14 else None) for step in range(1, 26)]
    assert verdict(evidence(records), reference=measured()).outcome == "fail"  # 11 of 20


@settings(deadline=None)
@given(
    phase=st.sampled_from(sorted(SECONDS)),
    factor=st.floats(1.031, 10.0),
    kind=st.sampled_from([measured, published]),
)
def test_any_phase_slower_than_its_band_is_named(phase, factor, kind):
    reference = kind()
    upper = band_of(f"timing/{phase}", reference).upper
    seconds = max(SECONDS[phase] * factor, upper * 1.0001)
    result = verdict(run_of({phase: seconds}), reference=reference)
    assert (result.outcome, result.failure) == ("fail", "regression")
    assert f"timing/{phase}" in [finding.subject for finding in result.findings]
    assert result.attribution[0].phase == phase


@settings(deadline=None)
@given(seconds=st.fixed_dictionaries({phase: st.floats(0.0, 1e4) for phase in SECONDS}), other=st.floats(0.0, 1e4))
def test_the_attribution_sums_to_the_difference_of_the_total(seconds, other):
    result = verdict(run_of(seconds, other), reference=measured())
    total = sum(seconds.values()) + other - 147.0
    assert math.isclose(sum(share.seconds for share in result.attribution), total, abs_tol=1e-6)
    if abs(total) > 1:
        assert math.isclose(sum(share.share for share in result.attribution), 1.0, abs_tol=1e-6)


def test_the_attribution_sums_though_medians_of_phases_do_not():
    records = [record(step, {("refit", "generation")[step % 2]: 200.0}) for step in range(1, 26)]
    result = verdict(evidence(records), reference=measured())
    total = next(one for one in result.comparisons if one.metric == "timing/total")
    assert math.isclose(sum(share.seconds for share in result.attribution), total.difference, abs_tol=1e-9)


@pytest.mark.parametrize("reference", [measured(), published()])
def test_every_reference_moved_by_1_3_in_a_direction_that_gates_changes_the_verdict(reference):
    moved = 0
    for metric, figure in reference.values.items():
        for factor in (1.3, 1 / 1.3):
            new = figure.model_copy(update={"value": figure.value * factor})
            other = reference.model_copy(update={"values": {**reference.values, metric: new}})
            band = band_of(metric, other)
            outside = figure.value > band.upper or (band.lower is not None and figure.value < band.lower)
            assert (verdict(reference=other).outcome != "pass") == outside, (metric, factor)
            moved += outside
    assert moved >= (10 if reference.source.kind == "measured" else 4)


@pytest.mark.parametrize(("first", "second"), list(permutations(SECONDS, 2)))
def test_swapping_two_phases_fails(first, second):
    result = verdict(run_of({first: SECONDS[second], second: SECONDS[first]}), reference=measured())
    assert result.outcome == "fail"


def test_faster_asks_for_a_refresh_and_fails_a_release_alone():
    result = verdict(run_of({"generation": 60.0}), reference=measured())
    assert (result.outcome, result.exit_code(), result.exit_code(release=True)) == ("faster", 0, 1)
    assert "refresh the reference" in result.sentence


def test_slower_in_one_phase_outweighs_faster_in_another():
    assert verdict(run_of({"generation": 60.0, "refit": 30.0}), reference=measured()).outcome == "fail"


@pytest.mark.parametrize("phase", SECONDS)
def test_a_phase_that_took_no_time_is_missing_and_not_faster(phase):
    seen = run_of({phase: 0.0}, other=3.0 + SECONDS[phase])  # the total stays
    result = verdict(seen, reference=measured())
    assert (result.outcome, result.failure) == ("fail", "correctness")
    assert "took no time" in result.sentence


def test_a_row_of_zeros_does_not_pass():
    row = dict.fromkeys(COLUMNS, 0.0)
    assert judge_row(row, case(), measured(), partition_name="here").outcome == "fail"
    assert judge_row(row, case(), published(), partition_name="here").outcome == "fail"


def test_a_row_does_not_show_that_bounds_hold():
    bounded = case(checks={"against_reference": [], "bounds": {"train/reward": {"lower": 0.5}}})
    result = judge_row({"timing/total": 1.0}, bounded, None, partition_name="here")
    assert (result.outcome, result.exit_code()) == ("not judged", 2)
    assert "judged by bounds" in result.sentence


@pytest.mark.parametrize("metric", REQUIRED)
def test_removing_any_metric_fails(metric):
    records = [record(step, **{metric: None}) for step in range(1, 26)]
    result = verdict(evidence(records), reference=measured())
    assert (result.outcome, result.failure) == ("fail", "correctness")
    assert metric in result.sentence


@settings(deadline=None)
@given(steps=st.integers(0, 24))
def test_a_run_cut_short_never_passes(steps):
    assert verdict(run_of({}, steps=steps), reference=measured()).outcome == "fail"


@pytest.mark.parametrize(
    ("state", "outcome", "failure", "code"),
    [
        ("running", "not judged", None, 2),
        ("failed", "fail", "crash", 1),
        ("killed", "fail", "unknown", 1),
        ("stopped", "fail", "unknown", 1),
    ],
)
def test_only_a_run_that_went_to_its_end_is_judged(state, outcome, failure, code):
    result = verdict(evidence(state=state), reference=measured())
    assert (result.outcome, result.failure, result.exit_code()) == (outcome, failure, code)


@pytest.mark.parametrize(
    ("changes", "failure", "message"),
    [
        ({"exit_code": 0, "last_step": 25}, None, "pass"),
        ({"exit_code": 1}, "crash", "completed, with exit code 1"),
        ({"last_step": 30}, "correctness", "ended with step 30, and its metrics with 25"),
        ({"last_step": 20}, "correctness", "ended with step 20, and its metrics with 25"),
        ({"last_step": 25, "metrics": []}, "correctness", "ended with step 25, and its metrics with none"),
    ],
)
def test_what_a_run_says_of_its_end_must_be_so(changes, failure, message):
    result = verdict(evidence(**changes), reference=measured())
    assert result.failure == failure
    assert message in result.sentence


def test_the_jobs_own_end_decides_first():
    result = verdict(evidence(job=JobOutcome("COMPLETED", exit_code=1, stage="trainer")), reference=measured())
    assert (result.outcome, result.failure) == ("fail", "crash")
    assert "exit code 1 of the trainer" in result.sentence
    result = verdict(evidence([], state="not started", job=JobOutcome("NODE_FAIL")), reference=measured())
    assert (result.outcome, result.failure) == ("fail", "infra")


@pytest.mark.parametrize(
    ("the_case", "reference", "message"),
    [
        (case(), None, "there is no reference"),
        (case(), unmeasured(), "no reference yet: not run yet (somebody, 2026-11-30)"),
        (case(), measured(runs=4), "provisional: 4 runs"),
        (case(min_steps=3), measured(), "provisional: the case is judged on 3 steps"),
        (case(), measured(stack={"torch": "2.10"}), "not judged: stack"),
        (case(), published(stack={"torch": "2.7"}), "the published row only informs"),
        (case(checks={"against_reference": [*COLUMNS, "timing/data"]}), measured(), "lacks timing/data"),
    ],
)
def test_what_cannot_decide_is_not_judged_and_never_a_pass(the_case, reference, message):
    for slow in (1.0, 3.0):
        seen = run_of({"refit": 14.0 * slow})
        result = verdict(seen, the_case, reference)
        assert (result.outcome, result.exit_code()) == ("not judged", 2)
        assert message in result.sentence
        assert not any(one.gates for one in result.comparisons)


def test_without_a_reference_a_wrong_result_still_fails():
    records = [record(step, **{"train/loss": math.nan}) for step in range(1, 26)]
    assert verdict(evidence(records), reference=unmeasured()).outcome == "fail"


def test_too_wide_a_band_reports_only():
    reference = measured(spread=0.03)
    assert verdict(run_of({"refit": 30.0}), reference=reference).outcome == "pass"
    assert all(not one.gates for one in verdict(reference=reference).comparisons)


def test_what_the_case_does_not_ask_for_does_not_gate():
    result = verdict(run_of({"refit": 30.0}), case(checks={"against_reference": ["timing/generation"]}), measured())
    assert result.outcome == "pass"


def test_nodes_of_another_partition_are_refused():
    result = verdict(evidence(nodes=nodes(gpus=4)), reference=measured())
    assert (result.outcome, result.failure, result.exit_code()) == ("not judged", "infra", 2)


def test_a_run_of_another_case_is_not_judged():
    expected = {"grpo": {**CONFIG["grpo"], "num_prompts_per_step": 1}}
    assert verdict(reference=measured(), expected=expected).outcome == "not judged"


def test_memory_beyond_two_per_cent_fails():
    memory = {"memory/rss_gib": {"value": 1.0, "unit": "GiB", "spread": 0.0}}
    the_case = case(checks={"against_reference": ["memory/rss_gib"]})
    for value, outcome in ((1.019, "pass"), (1.03, "fail"), (0.1, "pass")):
        records = [record(step, **{"memory/rss_gib": value}) for step in range(1, 26)]
        assert verdict(evidence(records), the_case, measured(memory)).outcome == outcome


def test_bounds_need_no_reference():
    checks = {"against_reference": [], "bounds": {"train/reward": {"lower": 0.5, "statistic": "last"}}}
    assert verdict(the_case=case(checks=checks)).outcome == "pass"
    checks["bounds"]["train/reward"]["lower"] = 1.5
    result = verdict(the_case=case(checks=checks))
    assert (result.outcome, result.failure) == ("fail", "correctness")


def test_no_case_or_partition_is_named_in_the_judges_code():
    folder = Path(judge_package.__file__).parent
    matrix = load_matrix(Path(__file__).parents[4] / "matrices")
    code = "\n".join(path.read_text() for path in folder.rglob("*.py"))
    names = {*matrix.cases, *matrix.partitions} - {"canary"}  # which is also what a case may be nothing but
    assert [name for name in names if name in code] == []


def calls_to_judge(steps):
    seen, count = run_of({}, steps=steps), 0

    def counted(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        verdict(seen, case(steps=steps), measured())
    finally:
        sys.setprofile(None)
    return count


def test_the_work_of_a_verdict_is_a_few_calls_for_each_value_of_the_run():
    # A thousand cases in under a second: `python -m benchmarks.judge` has the seconds.
    few, many = calls_to_judge(40), calls_to_judge(80)
    values = 40 * len(record(1))
    assert many - few < 5 * values
    assert few < 10 * values
