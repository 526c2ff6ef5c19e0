"""What the cases of the cluster assert, each of them: whatever one of these figures does wrong changes the verdict."""

from pathlib import Path

import pytest

from benchmarks.planned_cases import plan_of
from grpo.hub.plan import require_stored
from grpo.matrix.judge.bands import higher_is_worse
from grpo.matrix.load import load_matrix
from grpo.matrix.resolve import resolve_case
from grpo.matrix.schema.types import seconds_of
from grpo.trainer import prepare as preparing
from tests.support.matrix import COLUMNS, canary, evidence, measured, nodes, record, verdict, with_rates

MATRIX = load_matrix(Path(__file__).parents[3] / "matrices")
CLUSTER = [one for one in MATRIX.cases.values() if one.layer == "cluster" and one.gpus]
CASES = pytest.mark.parametrize("one", [one for one in CLUSTER if one.trains], ids=lambda one: one.id)
THROUGHPUT = {*COLUMNS, "performance/tokens_per_second_per_gpu", "performance/mfu"}
LOGPROB_ERROR = [
    "train/token_mult_prob_error",
    "train/token_mult_prob_error_p99",
    "train/token_mult_prob_error_max",
    "train/logprob_difference",
    "train/logprob_difference_p99",
    "train/logprob_difference_max",
]
PARTITION = with_rates()
MIDDLE = 0.5  # of MFU


def good_values(one):
    """Of a step that keeps every bound of the case."""
    values = dict.fromkeys([*one.checks.present, *one.checks.against_reference], 1.0)
    values |= {"performance/mfu": MIDDLE}
    for metric, bound in one.checks.bounds.items():
        if bound.share_of is None:
            values[metric] = (bound.lower + bound.upper) / 2 if bound.lower is not None and bound.upper else bound.lower
            values[metric] = values[metric] or bound.upper / 2
    if one.interrupted is not None:
        values |= dict.fromkeys(set(one.interrupted.equal) - set(values), 1.0)
    if one.lengths is not None:
        values["rollout/generated_tokens_per_sample"] = one.lengths.mean
        values["rollout/completion_length_p95"] = one.lengths.p95
        values["rollout/completion_length_max"] = one.lengths.longest
    return {metric: value for metric, value in values.items() if metric not in {*COLUMNS, "timing/other"}}


def steps_of(one, other=0.01, **changes):
    return [record(step, other=other, **{**good_values(one), **changes}) for step in range(1, one.steps + 1)]


def judged(one, *, records=None, discarded=None, benchmark=None):
    killed = {}
    if one.interrupted is not None:
        killed = {"resume_steps": [2], "discarded": [steps_of(one)[2]] if discarded is None else discarded}
    ratio = {"kind": "training", "ratio": {"of_medians": 1.0}} if benchmark is None else benchmark
    seen = evidence(
        steps_of(one) if records is None else records, nodes=nodes(one.nodes), benchmark=[ratio],
        canary=canary([f"node{n}" for n in range(one.nodes)]), **killed,
    )  # fmt: skip
    return verdict(seen, one, reference_of(one), PARTITION)


def reference_of(one):
    exact = steps_of(one)[0]
    return measured(
        {metric: {"value": exact[metric], "unit": "s", "spread": 0.005} for metric in one.checks.against_reference}
    )


def gates(one):
    return one.min_steps is None


def test_these_are_the_cases():
    """The four reported runs, each asynchronous, long, resumed and its refit alone; and what is of one node only."""
    four = ["8b-dtensor", "8b-megatron", "70b-dtensor", "70b-megatron"]
    expected = [f"{one}{variant}" for one in four for variant in ("", "-async", "-long", "-resume", "-refit")]
    expected += [f"8b-{backend}-{variant}" for backend in ("dtensor", "megatron")
                 for variant in ("overhead", "random", "async-random")]  # fmt: skip
    assert {one.id for one in CLUSTER} == {*expected, "8b-dtensor-async-resume", "canary"}


@CASES
def test_every_column_the_rates_and_the_rest_are_judged(one):
    assert set(one.checks.against_reference) >= THROUGHPUT
    rest = one.checks.bounds["timing/other"]
    assert (rest.share_of, rest.statistic) == ("timing/total", "median")
    assert rest.upper <= 0.05


@CASES
def test_a_run_as_its_reference_says_passes_or_informs(one):
    result = judged(one)
    assert result.outcome == ("pass" if gates(one) else "not judged"), result.sentence
    assert {each.status for each in result.comparisons} == {"within"}
    assert all(bound.holds for bound in result.bounds)


@CASES
def test_each_figure_that_is_worse_than_its_reference_is_found(one):
    for metric in one.checks.against_reference:
        if metric == "timing/total":
            continue
        was = steps_of(one)[0][metric]
        changes = {metric: was * 1.3 if higher_is_worse(metric) else was / 1.3}
        if metric in COLUMNS:  # the total grows with it
            phase = metric.removeprefix("timing/")
            records = [record(step, {phase: was * 1.3}, 0.01, **good_values(one)) for step in range(1, one.steps + 1)]
        else:
            records = steps_of(one, **changes)
        result = judged(one, records=records)
        found = {each.metric: each.status for each in result.comparisons}
        assert found[metric] == "worse", metric
        assert result.failure == ("regression" if gates(one) else None), metric


@CASES
def test_each_bound_of_correctness_fails_what_breaks_it(one):
    bounds = one.checks.bounds
    assert set(bounds) >= {*LOGPROB_ERROR, "train/raw_reward", "train/grad_norm", "timing/other"}
    for metric, bound in bounds.items():
        broken = []
        if bound.share_of is not None:
            whole = 147.0
            broken += (
                [{"other": 2 * bound.upper * whole}]
                if metric == "timing/other"
                else [{metric: 2 * bound.upper * whole}]
            )
        else:
            broken += [{metric: bound.upper * 1.01}] if bound.upper is not None else []
            broken += [{metric: bound.lower * 0.99}] if bound.lower is not None else []
        assert broken, metric
        for changes in broken:
            result = judged(one, records=steps_of(one, **changes))
            assert (result.outcome, result.failure) == ("fail", "correctness"), (metric, result.sentence)
            assert metric in [each.subject for each in result.findings]


@pytest.mark.parametrize("one", [one for one in CLUSTER if one.interrupted], ids=lambda one: one.id)
def test_a_step_that_is_trained_again_must_be_what_it_was(one):
    assert {"train/raw_reward", "train/grad_norm", "train/learning_rate", "train/token_mult_prob_error"} <= set(
        one.interrupted.equal
    )
    for metric, most in one.interrupted.equal.items():
        first = steps_of(one)[2]
        result = judged(one, discarded=[{**first, metric: first[metric] / (1 + 1.1 * most + 0.01)}])
        assert result.failure == "correctness", metric
        assert metric in [each.subject for each in result.findings]


@pytest.mark.parametrize("one", [one for one in CLUSTER if one.benchmark], ids=lambda one: one.id)
def test_the_ratio_to_the_bare_loop_fails_what_is_slower(one):
    result = judged(one, benchmark={"kind": "training", "ratio": {"of_medians": 1.03}})
    assert result.failure == "regression"
    assert judged(one, benchmark={"kind": "other"}).failure == "correctness"


@pytest.mark.parametrize("one", CLUSTER, ids=lambda one: one.id)
def test_what_it_may_cost_is_written_down_and_close_to_its_time_limit(one):
    hours = seconds_of(one.time_limit) / 3600 * one.gpus
    assert hours <= MATRIX.budgets.case_gpu_hours[one.id] <= 2 * hours


@pytest.mark.parametrize("one", CLUSTER, ids=lambda one: one.id)
def test_nothing_is_in_eight_bits(one):
    config = resolve_case(one).config
    assert config.policy.precision == "bfloat16"
    assert "fp8" not in str(config.model_dump()).lower()


@pytest.mark.parametrize("one", CLUSTER, ids=lambda one: one.id)
def test_the_plan_says_that_it_fits(one):
    for partition in one.partitions:
        assert plan_of(one, partition, prompt_tokens=150).fits, partition


@pytest.mark.parametrize("one", [one for one in CLUSTER if one.family == "cluster_random"], ids=lambda one: one.id)
def test_the_random_cases_need_no_hub(one, tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    monkeypatch.setattr(preparing, "check_runnable", lambda _: None)  # there are no GPUs
    resolved = resolve_case(one).resolved
    require_stored(resolved.config, one.recipe)
    prompts = preparing.prepare(resolved).train.prompts
    assert len(prompts) >= one.steps * resolved.config.grpo.num_prompts_per_step
    assert 100 < sum(len(each.token_ids) for each in prompts) / len(prompts) < 200
