import pytest

from grpo.matrix.judge.replayed import check_lengths
from grpo.matrix.schema import Lengths
from tests.support.matrix import case, evidence, measured, record, verdict

LENGTHS = {"mean": 400.0, "p95": 1500.0, "longest": 4000.0, "source": "a run"}
METRICS = {
    "rollout/generated_tokens_per_sample": 400.0,
    "rollout/completion_length_p95": 1500.0,
    "rollout/completion_length_max": 4000.0,
}


def records(**changes):
    return [record(step, **METRICS | changes) for step in range(1, 26)]


def test_a_case_that_samples_its_lengths_is_not_checked():
    assert check_lengths(None, records()) == []


def test_replayed_lengths_are_judged():
    assert verdict(evidence(records()), case(lengths=LENGTHS), measured()).outcome == "pass"


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_other_lengths_are_another_workload(metric, factor):
    slow = records(**{metric: METRICS[metric] * factor})
    result = verdict(evidence(slow), case(lengths=LENGTHS), measured())
    assert (result.outcome, result.failure, result.exit_code()) == ("not judged", None, 2)
    assert f"{metric} = " in result.sentence
    assert "lengths were not replayed" in result.sentence


def test_the_mean_alone_would_hide_stragglers():
    findings = check_lengths(Lengths.model_validate(LENGTHS), records(**{"rollout/completion_length_p95": 500.0}))
    assert [finding.subject for finding in findings] == ["rollout/completion_length_p95"]


def test_scatter_of_a_step_is_allowed():
    assert (
        check_lengths(Lengths.model_validate(LENGTHS), records(**{"rollout/generated_tokens_per_sample": 407.0})) == []
    )
