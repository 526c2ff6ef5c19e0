"""What must not change loss, gradients or metrics: how a batch is cut, ordered, padded or repeated. Float64."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.algorithm.metrics import MetricSums
from grpo.algorithm.objective import ObjectiveOptions, objective
from tests.unit.algorithm.cases import COVERING, PER_TOKEN, denominators_of, leaf, random_values, select

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=7)
options = st.sampled_from(COVERING).map(lambda row: ObjectiveOptions(**row))
seeds = st.integers(0, 2**16)
SETTINGS = settings(max_examples=60, deadline=None)


def draw_values(chosen, sizes, seed, untrained=()):
    return random_values(sizes, seed=seed, untrained_sequences=untrained, on_policy=chosen.force_on_policy_ratio)


def evaluate(parts, chosen, denominators):
    """Loss and metrics summed over micro-batches, gradients per micro-batch."""
    loss, sums = 0.0, MetricSums()
    for part in parts:
        result = objective(part, chosen, denominators)
        result.loss.backward()
        loss += result.loss.item()
        sums = sums.merge(result.metrics)
    return loss, sums.finalise(denominators)


def assert_same(result, expected):
    assert result[0] == pytest.approx(expected[0], rel=1e-10, abs=1e-12)
    assert result[1] == pytest.approx(expected[1], rel=1e-9, abs=1e-12)


@SETTINGS
@given(sizes=lengths, chosen=options, seed=seeds, data=st.data())
def test_any_cut_into_micro_batches_in_any_order(sizes, chosen, seed, data):
    untrained = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    whole = draw_values(chosen, sizes, seed, untrained)
    denominators = denominators_of(whole)
    order = data.draw(st.permutations(range(len(sizes))))
    bins = [data.draw(st.integers(0, 2)) for _ in order]
    groups = [members for b in range(3) if (members := [s for s, own in zip(order, bins, strict=True) if own == b])]
    parts = [select(whole, members) for members in groups]
    expected = evaluate([whole], chosen, denominators)
    assert_same(evaluate([part for part, _ in parts], chosen, denominators), expected)
    for part, positions in parts:
        torch.testing.assert_close(part.logprobs.grad, whole.logprobs.grad[positions], rtol=1e-10, atol=1e-12)


@SETTINGS
@given(sizes=lengths, chosen=options, seed=seeds, data=st.data())
def test_interleaving_tokens_of_different_sequences(sizes, chosen, seed, data):
    whole = draw_values(chosen, sizes, seed)
    order = torch.tensor(data.draw(st.permutations(range(sum(sizes)))))
    fields = {n: getattr(whole, n).detach()[order] for n in PER_TOKEN if getattr(whole, n) is not None}
    fields["logprobs"] = leaf(fields["logprobs"])
    mixed = replace(whole, mask=whole.mask[order], sequence_ids=whole.sequence_ids[order], **fields)
    denominators = denominators_of(whole)
    expected = evaluate([whole], chosen, denominators)
    assert_same(evaluate([mixed], chosen, denominators), expected)
    torch.testing.assert_close(mixed.logprobs.grad, whole.logprobs.grad[order], rtol=1e-10, atol=1e-12)


@SETTINGS
@given(sizes=lengths, chosen=options, seed=seeds, pad=st.integers(1, 5), rows=st.integers(0, 2))
def test_padding_each_sequence_and_adding_masked_ones(sizes, chosen, seed, pad, rows):
    whole = draw_values(chosen, sizes, seed)
    ids = torch.cat([whole.sequence_ids, torch.arange(len(sizes) + rows).repeat_interleave(pad)])
    extra = ids.numel() - sum(sizes)
    fields = {
        n: torch.cat([getattr(whole, n).detach(), torch.full((extra,), torch.nan, dtype=torch.float64)])
        for n in PER_TOKEN
        if getattr(whole, n) is not None
    }
    fields["logprobs"] = leaf(fields["logprobs"])
    padded = replace(
        whole, mask=torch.cat([whole.mask, torch.zeros(extra, dtype=torch.bool)]), sequence_ids=ids,
        num_sequences=len(sizes) + rows,
        advantages=torch.cat([whole.advantages, torch.full((rows,), torch.nan)]), **fields,
    )  # fmt: skip
    denominators = denominators_of(whole)
    assert denominators_of(padded) == denominators
    assert_same(evaluate([padded], chosen, denominators), evaluate([whole], chosen, denominators))
    expected = torch.cat([whole.logprobs.grad, torch.zeros(extra, dtype=torch.float64)])
    torch.testing.assert_close(padded.logprobs.grad, expected, rtol=1e-10, atol=1e-12)


@SETTINGS
@given(sizes=lengths, chosen=options, seed=seeds, times=st.integers(2, 3))
def test_repeating_every_sequence(sizes, chosen, seed, times):
    whole = draw_values(chosen, sizes, seed)
    repeated, _ = select(whole, list(range(len(sizes))) * times)
    loss, metrics = evaluate([whole], chosen, denominators_of(whole))
    again_loss, again = evaluate([repeated], chosen, denominators_of(repeated))
    assert again_loss == pytest.approx(loss, rel=1e-10, abs=1e-12)
    totals = {"trained_tokens", "trained_sequences", "nonfinite_importance_weights"}
    interpolated = {"token_mult_prob_error_p99", "logprob_difference_p99"}
    for name, value in metrics.items():
        if name not in interpolated:
            assert again[name] == pytest.approx(value * (times if name in totals else 1), rel=1e-9, abs=1e-12), name
    total = repeated.logprobs.grad.reshape(times, -1).sum(0)
    torch.testing.assert_close(total, whole.logprobs.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("kind", ["clipped", "gspo", "cispo"])
def test_gradient_norm_does_not_depend_on_accumulation(kind, accumulation):
    chosen = ObjectiveOptions(kind=kind, entropy_coef=0.1)
    whole = random_values((2, 6, 3, 5))
    denominators = denominators_of(whole)
    size = 4 // accumulation
    parts = [select(whole, list(range(i, i + size)))[0] for i in range(0, 4, size)]
    evaluate(parts, chosen, denominators)
    evaluate([whole], chosen, denominators)
    norm = torch.cat([part.logprobs.grad for part in parts]).norm().item()
    assert norm == pytest.approx(whole.logprobs.grad.norm().item(), rel=1e-12)
