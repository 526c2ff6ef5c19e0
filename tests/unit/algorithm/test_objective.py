import math
from dataclasses import replace

import pytest
import torch

from grpo.algorithm.metrics import METRICS
from grpo.algorithm.objective import Denominators, ObjectiveOptions, TokenValues, effective_aggregation, objective
from tests.unit.algorithm.cases import (
    AXES,
    COVERING,
    PER_TOKEN,
    denominators_of,
    leaf,
    options_id,
    random_values,
)
from tests.unit.algorithm.reference import reference_objective

SHAPES = [((5, 1, 9, 3), ()), ((2, 6, 4), (1,)), ((11,), ())]
KINDS = ("clipped", "gspo", "cispo")
CORRECTIONS = AXES["correction_kind"]


def run(values, options, denominators=None):
    result = objective(values, options, denominators or denominators_of(values))
    result.loss.backward()
    return result


@pytest.mark.parametrize("nonfinite", [False, True], ids=["finite", "nonfinite-generation"])
@pytest.mark.parametrize("options", COVERING, ids=options_id)
def test_against_the_formulas_one_token_at_a_time(options, nonfinite):
    lengths, untrained = SHAPES[COVERING.index(options) % len(SHAPES)]
    values = random_values(
        lengths, seed=COVERING.index(options), untrained_sequences=untrained, on_policy=options["force_on_policy_ratio"]
    )
    if nonfinite:
        values.generation_logprobs[values.mask.nonzero()[0]] = -math.inf
        values.generation_logprobs[values.mask.nonzero()[-1]] = math.nan
    scalars = [x.detach().clone().requires_grad_() for x in values.logprobs]
    entropies = [x.detach().clone().requires_grad_() for x in values.entropy]
    case = {
        "l": scalars, "entropy": entropies, "gen": values.generation_logprobs, "ref": values.reference_logprobs,
        "old": values.old_logprobs, "mask": values.mask.tolist(), "ids": values.sequence_ids.tolist(),
        "advantages": values.advantages.tolist(),
    }  # fmt: skip
    denominators = denominators_of(values)
    expected, expected_metrics = reference_objective(case, options, denominators.tokens, denominators.sequences)
    expected.backward()
    result = run(values, ObjectiveOptions(**options), denominators)

    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-10, abs=1e-12)
    zero = torch.zeros((), dtype=torch.float64)
    gradients = torch.stack([zero if x.grad is None else x.grad for x in scalars])
    torch.testing.assert_close(values.logprobs.grad, gradients, rtol=1e-10, atol=1e-12)
    if options["entropy_coef"]:
        torch.testing.assert_close(
            values.entropy.grad,
            torch.stack([zero if x.grad is None else x.grad for x in entropies]),
            rtol=1e-10,
            atol=0,
        )
    metrics = result.metrics.finalise(denominators)
    for name, value in expected_metrics.items():
        assert metrics[name] == pytest.approx(value, rel=1e-10, abs=1e-12), name
    assert metrics["trained_tokens"] == denominators.tokens
    assert metrics["trained_sequences"] == denominators.sequences


def test_every_metric_is_declared_and_every_option_reported():
    values = random_values((4, 3))
    names = set()
    for kind in CORRECTIONS:
        options = ObjectiveOptions(correction_kind=kind, correction_min=0.5, correction_max=2.0, entropy_coef=0.1)
        names |= set(objective(values, options, denominators_of(values)).metrics.finalise(denominators_of(values)))
    assert names == set(METRICS) - {"grad_norm", "zero_std_fraction"}


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("options", COVERING, ids=options_id)
def test_masked_positions_do_not_exist(options, garbage):
    """Loss, gradients and metrics are bitwise those of zeros there, and the gradient there is exactly 0."""
    options = ObjectiveOptions(**options)
    values = random_values(
        (5, 1, 9, 3), untrained_sequences=(1,), dtype=torch.float32, on_policy=options.force_on_policy_ratio
    )
    results = []
    for filler in (0.0, garbage):
        fields = {
            name: torch.where(values.mask, getattr(values, name).detach(), filler)
            for name in PER_TOKEN
            if getattr(values, name) is not None
        }
        fields["logprobs"], fields["entropy"] = leaf(fields["logprobs"]), leaf(fields["entropy"])
        # The advantage of a sequence without a trained token is no trained value either.
        advantages = values.advantages.clone()
        advantages[1] = filler
        filled = replace(values, advantages=advantages, **fields)
        result = run(filled, options)
        results.append((result.loss, result.metrics.finalise(denominators_of(values)), filled))
    (loss, metrics, clean), (other_loss, other_metrics, dirty) = results
    assert torch.equal(loss, other_loss)
    assert metrics == other_metrics
    assert torch.equal(clean.logprobs.grad, dirty.logprobs.grad)
    assert torch.equal(dirty.logprobs.grad[~values.mask], torch.zeros(int((~values.mask).sum())))
    if options.entropy_coef:
        assert torch.equal(clean.entropy.grad, dirty.entropy.grad)
        assert not dirty.entropy.grad[~values.mask].any()


@pytest.mark.parametrize("options", COVERING, ids=options_id)
def test_nothing_trained_is_exactly_nothing(options):
    options = ObjectiveOptions(**options)
    values = random_values((3, 4), untrained_sequences=(0, 1), on_policy=options.force_on_policy_ratio)
    result = run(values, options, Denominators(0.0, 0.0))
    assert result.loss.item() == 0.0
    assert torch.equal(values.logprobs.grad, torch.zeros_like(values.logprobs))
    metrics = result.metrics.finalise(Denominators(0.0, 0.0))
    assert metrics["trained_tokens"] == 0.0
    assert all(value == 0.0 for value in metrics.values())
    assert "probs_ratio_min" not in metrics


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("aggregation", AXES["aggregation"])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_weight_of_two_doubles_the_gradients_of_every_loss(kind, aggregation, correction):
    """Two tokens a sequence, w = 2: under `sequence` each difference is half of log 2."""
    values = random_values((2, 2, 2), trained=1.1)
    difference = math.log(2) / (2 if correction == "sequence" else 1)
    values = replace(values, generation_logprobs=values.old_logprobs - difference)
    options = ObjectiveOptions(
        kind=kind, aggregation=aggregation, aggregation_norm_length=3.0, kl_penalty=0.2, correction_kind=correction,
        correction_cap=4.0, correction_min=0.1, correction_max=4.0,
    )  # fmt: skip
    gradients = []
    for use in (False, True):
        leaf_values = replace(values, logprobs=leaf(values.logprobs))
        run(leaf_values, replace(options, use_correction=use))
        gradients.append(leaf_values.logprobs.grad)
    torch.testing.assert_close(gradients[1], 2 * gradients[0])
    assert gradients[0].abs().sum() > 0


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_the_weight_stays_the_same_while_the_policy_moves(correction):
    """It is made of l_old and l_gen alone: the second mini-batch of a step has that of the first."""
    values = random_values((4, 3))
    options = ObjectiveOptions(
        use_correction=True, correction_kind=correction, correction_min=0.5, correction_max=2.0, kl_penalty=0.0
    )
    moved = replace(values, logprobs=leaf(values.logprobs - 0.7))
    ratios = [
        run(v, options).metrics.finalise(denominators_of(v))["sampling_importance_ratio"] for v in (values, moved)
    ]
    assert ratios[0] == ratios[1]


def test_on_policy_ratio_is_one_and_old_is_the_policy_itself():
    values = random_values((4, 3), on_policy=True)
    options = ObjectiveOptions(force_on_policy_ratio=True, kl_penalty=0.0, use_correction=True)
    metrics = run(values, options).metrics.finalise(denominators_of(values))
    assert metrics["probs_ratio"] == metrics["probs_ratio_min"] == metrics["probs_ratio_max"] == 1.0
    assert metrics["clip_fraction"] == 0.0
    weights = torch.exp(values.logprobs.detach() - values.generation_logprobs)
    expected = torch.where(
        values.mask, -values.advantages[values.sequence_ids] * weights / values.mask.sum(), torch.zeros(()).double()
    )
    torch.testing.assert_close(values.logprobs.grad, expected)


def test_on_policy_equals_old_logprobs_that_are_the_policy():
    values = random_values((4, 3), on_policy=True)
    forced = run(values, ObjectiveOptions(force_on_policy_ratio=True))
    given = replace(values, logprobs=leaf(values.logprobs), old_logprobs=values.logprobs.detach())
    assert torch.equal(run(given, ObjectiveOptions()).loss, forced.loss)
    assert torch.equal(given.logprobs.grad, values.logprobs.grad)


def test_gspo_is_a_mean_over_sequences_whatever_the_options_say():
    values = random_values((2, 7))
    losses = {
        objective(values, ObjectiveOptions(kind="gspo", aggregation=kind), denominators_of(values)).loss.item()
        for kind in AXES["aggregation"]
    }
    assert len(losses) == 1
    assert effective_aggregation(ObjectiveOptions(kind="gspo")) == "seq_mean_token_mean"


def test_the_entropy_bonus_is_the_aggregated_entropy_without_weight():
    """Entropy of softmax([2, 0]) is 0.365334; the importance weight of 2 does not touch it."""
    logprobs = torch.log_softmax(torch.tensor([2.0, 0.0], dtype=torch.float64), 0)
    entropy = -(logprobs.exp() * logprobs).sum()
    values = TokenValues(
        logprobs=leaf(logprobs), mask=torch.tensor([True, True]), sequence_ids=torch.zeros(2, dtype=torch.int64),
        num_sequences=1, advantages=torch.zeros(1), generation_logprobs=logprobs - math.log(2),
        old_logprobs=logprobs, entropy=entropy.expand(2),
    )  # fmt: skip
    options = ObjectiveOptions(entropy_coef=0.5, kl_penalty=0.0, use_correction=True)
    result = objective(values, options, Denominators(2.0, 1.0))
    assert result.loss.item() == pytest.approx(-0.5 * 0.365334, abs=1e-6)
    assert result.metrics.finalise(Denominators(2.0, 1.0))["entropy"] == pytest.approx(0.365334, abs=1e-6)


def test_a_non_finite_engine_log_prob_costs_one_token_and_is_counted():
    values = random_values((3, 4), trained=1.1)
    values.generation_logprobs[2] = -math.inf
    options = ObjectiveOptions(use_correction=True)
    metrics = run(values, options).metrics.finalise(denominators_of(values))
    assert metrics["nonfinite_importance_weights"] == 1.0
    assert values.logprobs.grad[2] == 0.0
    assert all(math.isfinite(value) for value in metrics.values())
    assert values.logprobs.grad.isfinite().all()


def test_one_bad_sequence_shows_in_the_maximum_though_the_mean_hides_it():
    values = random_values((4,) * 200, trained=1.1)
    generation = values.old_logprobs.clone()
    generation[:4] -= math.log(100)
    metrics = run(replace(values, generation_logprobs=generation), ObjectiveOptions()).metrics.finalise(
        denominators_of(values)
    )
    assert metrics["token_mult_prob_error"] == pytest.approx(1 + 99 / 200)
    assert metrics["token_mult_prob_error_max"] == pytest.approx(100)
    assert metrics["token_mult_prob_error_p99"] == pytest.approx(1)
    assert metrics["logprob_difference"] == pytest.approx(math.log(100) / 200)
    assert metrics["logprob_difference_max"] == pytest.approx(math.log(100))
    assert metrics["logprob_difference_p99"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"reference_logprobs": None}, {}, "reference_logprobs"),
        ({"entropy": None}, {"entropy_coef": 0.1}, "entropy"),
        ({"old_logprobs": None}, {}, "force_on_policy_ratio"),
        ({}, {"force_on_policy_ratio": True}, "force_on_policy_ratio"),
        ({}, {"kind": "ppo"}, "clipped, gspo or cispo"),
        ({}, {"kl_kind": "k4"}, "k1, k2 or k3"),
        ({}, {"aggregation": "mean"}, "token_mean"),
        ({}, {"aggregation": "seq_mean_token_sum_norm"}, "norm_length"),
        ({}, {"correction_kind": "clip"}, "icepop"),
        ({}, {"correction_kind": "icepop"}, "minimum <= maximum"),
    ],
)
def test_missing_values_and_unknown_kinds_are_refused(fields, options, message):
    values = replace(random_values((3, 4)), **fields)
    with pytest.raises(ValueError, match=message):
        objective(values, ObjectiveOptions(**options), denominators_of(values))


def test_values_that_no_option_needs_may_be_missing():
    values = replace(random_values((3, 4)), reference_logprobs=None, entropy=None)
    metrics = run(values, ObjectiveOptions(kl_penalty=0.0)).metrics.finalise(denominators_of(values))
    assert not {"kl_penalty", "kl_loss", "entropy", "entropy_loss"} & set(metrics)


def test_a_kl_term_in_the_reward_leaves_the_loss_alone():
    values = random_values((3, 4))
    without = objective(values, ObjectiveOptions(kl_penalty=0.0), denominators_of(values)).loss
    inside = objective(values, ObjectiveOptions(kl_penalty=0.5, kl_in_loss=False), denominators_of(values)).loss
    assert torch.equal(without, inside)
