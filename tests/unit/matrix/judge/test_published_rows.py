"""The rows that users reported, judged exactly as the project states."""

from pathlib import Path

import pytest

from grpo.matrix.judge import judge_row, row_of
from grpo.matrix.load import load_matrix

MATRIX = load_matrix(Path(__file__).parents[4] / "matrices")
# total, policy training, refit, generation, log-probs, generated tokens
PUBLISHED = {
    "8b-megatron": (112, 28, 5, 58, 18, 795),
    "8b-dtensor": (122, 38, 4, 57, 19, 777),
    "70b-megatron": (147, 28, 14, 84, 18, 398),
    "70b-dtensor": (230, 97, 15, 82, 28, 395),
}
RERUN = {
    "8b-megatron": (116, 27, 8, 56, 18, 811),
    "8b-dtensor": (129, 40, 6, 55, 19, 802),
    "70b-megatron": (178, 31, 26, 87, 20, 396),
    "70b-dtensor": (266, 117, 20, 88, 29, 411),
}
NAMES = ("total", "policy_training", "refit", "generation", "logprobs", "generated_tokens")


def judged(case, numbers):
    row = row_of(",".join(f"{name}={number}" for name, number in zip(NAMES, numbers, strict=True)))
    return judge_row(row, MATRIX.case(case), MATRIX.reference("h100-80g", case), partition_name="h100-80g")


def seconds(verdict):
    return {share.phase: round(share.seconds, 6) for share in verdict.attribution}


@pytest.mark.parametrize("case", PUBLISHED)
def test_published_rows_pass_against_themselves(case):
    verdict = judged(case, PUBLISHED[case])
    assert verdict.outcome == "pass"
    assert verdict.reference == "published"
    assert set(seconds(verdict).values()) == {0}
    assert verdict.exit_code() == 0


@pytest.mark.parametrize("case", ["8b-megatron", "8b-dtensor"])
def test_the_8b_reruns_pass(case):
    verdict = judged(case, RERUN[case])
    assert verdict.outcome == "pass"
    assert not verdict.findings


def test_the_70b_megatron_rerun_fails_on_its_total_and_refit():
    verdict = judged("70b-megatron", RERUN["70b-megatron"])
    assert (verdict.outcome, verdict.failure, verdict.exit_code()) == ("fail", "regression", 1)
    assert [finding.subject for finding in verdict.findings] == ["timing/total", "timing/refit"]
    assert seconds(verdict) == {"refit": 12, "other": 11, "policy_training": 3, "generation": 3, "logprobs": 2}
    other = next(share for share in verdict.attribution if share.phase == "other")
    assert (other.reference, other.value) == (3, 14)
    assert verdict.sentence == (
        "fail (regression): total 178 s against 147 s (+31 s, +21 %): refit +12 s, other +11 s (3 -> 14), "
        "policy training +3 s, generation +3 s, log-probs +2 s"
    )


def test_the_70b_dtensor_rerun_fails_on_its_total_and_training():
    verdict = judged("70b-dtensor", RERUN["70b-dtensor"])
    assert (verdict.outcome, verdict.exit_code()) == ("fail", 1)
    assert [finding.subject for finding in verdict.findings] == ["timing/total", "timing/policy_training"]
    assert seconds(verdict) == {"policy_training": 20, "generation": 6, "refit": 5, "other": 4, "logprobs": 1}
    assert "(+36 s, +16 %)" in verdict.sentence
    assert "other +4 s (8 -> 12)" in verdict.sentence


def test_the_references_are_the_published_rows():
    metrics = ["timing/total", *(f"timing/{name}" for name in NAMES[1:5]), "rollout/generated_tokens_per_sample"]
    for case, numbers in PUBLISHED.items():
        reference = MATRIX.reference("h100-80g", case)
        assert reference.source.kind == "published"
        assert {name: figure.value for name, figure in reference.values.items()} == dict(
            zip(metrics, numbers, strict=True)
        )


def test_longer_answers_inform_and_never_gate():
    numbers = (*PUBLISHED["70b-megatron"][:5], 4000)
    verdict = judged("70b-megatron", numbers)
    assert verdict.outcome == "pass"
    tokens = next(one for one in verdict.comparisons if one.metric.startswith("rollout/"))
    assert (tokens.status, tokens.gates) == ("informs", False)


def test_a_missing_column_and_phases_beyond_the_total_fail():
    row = row_of("total=147,policy_training=28,refit=14,generation=84")
    case, reference = MATRIX.case("70b-megatron"), MATRIX.reference("h100-80g", "70b-megatron")
    verdict = judge_row(row, case, reference, partition_name="h100-80g")
    assert (verdict.outcome, verdict.failure) == ("fail", "correctness")
    assert "log-probs is missing from the row" in verdict.sentence
    row = row_of("total=110,policy_training=28,refit=14,generation=84,logprobs=18")
    verdict = judge_row(row, case, reference, partition_name="h100-80g")
    assert "the phases sum to 144 s, more than the total of 110 s" in verdict.sentence


@pytest.mark.parametrize("total", [161.7, 117.6])
def test_ten_per_cent_is_within_the_band_and_twice_that_on_the_fast_side(total):
    case, reference = MATRIX.case("70b-megatron"), MATRIX.reference("h100-80g", "70b-megatron")
    row = {**row_of("policy_training=28,refit=14,generation=50,logprobs=18"), "timing/total": total}
    outcome = judge_row(row, case, reference, partition_name="h100-80g")
    comparison = next(one for one in outcome.comparisons if one.metric == "timing/total")
    assert comparison.status == "within"
    row["timing/total"] += 0.2 if total > 147 else -0.2
    outcome = judge_row(row, case, reference, partition_name="h100-80g")
    comparison = next(one for one in outcome.comparisons if one.metric == "timing/total")
    assert comparison.status == ("worse" if total > 147 else "better")
