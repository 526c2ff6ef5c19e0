"""Drawing tokens: frequencies, filters and the probability that is reported."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.workers.generation.sampler import NOISE_BLOCK, Noise, Sampler
from grpo.workers.protocol import SamplingParams

CPU = torch.device("cpu")


def sampler(**values) -> Sampler:
    return Sampler(SamplingParams(8, **values), CPU)


def uniforms(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def repeated(logits: list[float], count: int) -> torch.Tensor:
    return torch.tensor(logits).repeat(count, 1)


def draw(drawing: Sampler, logits: list[float], points: torch.Tensor, *, forbid_stops: bool = False):
    return drawing(repeated(logits, len(points)), points, forbid_stops=forbid_stops)


def test_temperature_divides_the_logits():
    """z = [2, 0], T = 0.6: log-probs -.035052 and -3.368386; dividing log-probs by T would give -.211547, -3.544880."""
    tokens, probabilities = draw(sampler(temperature=0.6), [2.0, 0.0], uniforms(0.1, 0.999))
    assert tokens.tolist() == [0, 1]
    assert probabilities.log().tolist() == pytest.approx([-0.035052, -3.368386], abs=1e-6)


def test_top_p_renormalises_on_the_kept_set():
    """p = [.6, .3, .1], top_p .85: the first two are kept and have .9 between them."""
    logits = [math.log(p) for p in (0.1, 0.6, 0.3)]
    tokens, probabilities = draw(sampler(top_p=0.85), logits, uniforms(0.0, 0.66, 0.67, 0.9999))
    assert tokens.tolist() == [1, 1, 2, 2]
    assert probabilities.tolist() == pytest.approx([0.6 / 0.9, 0.6 / 0.9, 0.3 / 0.9, 0.3 / 0.9])


def test_top_p_keeps_the_token_that_reaches_it_and_at_least_one():
    logits = [math.log(p) for p in (0.5, 0.3, 0.2)]
    points = torch.linspace(0, 0.999, 50, dtype=torch.float64)
    for top_p, kept in ((0.01, {0}), (0.49, {0}), (0.51, {0, 1}), (0.81, {0, 1, 2}), (1.0, {0, 1, 2})):
        assert set(draw(sampler(top_p=top_p), logits, points)[0].tolist()) == kept


def test_top_k_comes_before_top_p():
    """Top 2 of [.4, .3, .2, .1] are .571 and .429; top_p .55 of those keeps the first alone, of all four two."""
    logits = [math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]
    points = torch.linspace(0, 0.999, 20, dtype=torch.float64)
    tokens, probabilities = draw(sampler(top_k=2, top_p=0.55), logits, points)
    assert set(tokens.tolist()) == {1}
    assert probabilities.tolist() == pytest.approx([1.0] * 20)
    assert set(draw(sampler(top_p=0.55), logits, points)[0].tolist()) == {1, 3}
    assert set(draw(sampler(top_k=2), logits, points)[0].tolist()) == {1, 3}


def test_top_k_beyond_the_vocabulary_keeps_all():
    points = torch.linspace(0, 0.999, 30, dtype=torch.float64)
    assert set(draw(sampler(top_k=9), [0.0, 0.1, 0.2], points)[0].tolist()) == {0, 1, 2}


def test_greedy_takes_the_argmax_and_reports_its_plain_probability():
    tokens, probabilities = sampler(temperature=0.0, top_p=0.1)(
        torch.tensor([[0.0, 2.0], [1.0, 1.0]]), None, forbid_stops=False
    )
    assert tokens.tolist() == [1, 0]
    assert probabilities.log().tolist() == pytest.approx([-0.126928, -0.693147], abs=1e-6)


@pytest.mark.parametrize("values", [{}, {"top_p": 0.99}, {"temperature": 0.0}])
def test_forbidden_stops_have_no_probability(values):
    drawing = sampler(stop_token_ids=(0, 2), **values)
    points = torch.linspace(0, 0.999, 9, dtype=torch.float64)
    given_points = None if values.get("temperature") == 0.0 else points
    tokens, probabilities = drawing(repeated([9.0, 1.0, 8.0, 0.0], 9), given_points, forbid_stops=True)
    assert set(tokens.tolist()) <= {1, 3}
    first = probabilities[tokens == 1]
    assert first.log().tolist() == pytest.approx([-0.313262] * len(first), abs=1e-6)  # log_softmax([1, 0])[0]


def test_a_token_without_probability_is_never_drawn():
    points = uniforms(0.0, 1.0 - 2.0**-40)
    assert draw(sampler(), [-math.inf, 0.0, 1.0, -math.inf], points)[0].tolist() == [1, 2]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([0.3, 1.0, 2.5]),
)
def test_the_inverse_of_the_cumulative_distribution(logits, point, temperature):
    """The token is the first whose cumulative probability exceeds the uniform number, up to rounding."""
    point = min(point, 1.0 - 2.0**-40)
    tokens, reported = draw(sampler(temperature=temperature), logits, uniforms(point))
    probabilities = (torch.tensor(logits, dtype=torch.float64) / temperature).softmax(0)
    upper = probabilities[: tokens.item() + 1].sum()
    assert upper - probabilities[tokens.item()] - 1e-5 <= point <= upper + 1e-5
    assert reported.item() == pytest.approx(probabilities[tokens.item()].item(), rel=1e-4)
    assert reported.item() > 0


@pytest.mark.parametrize("values", [{}, {"temperature": 0.6}, {"temperature": 1.3}, {"top_k": 6}, {"top_p": 0.8}])
def test_frequencies_are_those_of_the_distribution(values):
    """20,000 draws with a fixed seed: every frequency within 5 standard deviations, and so is chi-squared."""
    count = 20_000
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 1.5
    noise = Noise([77], count, 1)
    points = noise.block(torch.arange(count), 0, CPU)[0]
    tokens, reported = draw(sampler(**values), logits.tolist(), points)
    counts = torch.bincount(tokens, minlength=12).double()
    expected = _distribution(logits, **values)
    deviation = (expected * (1 - expected) / count).sqrt()
    assert ((counts / count - expected).abs() <= 5 * deviation).all()
    kept = expected > 0
    chi = ((counts - count * expected)[kept] ** 2 / (count * expected[kept])).sum()
    freedom = int(kept.sum()) - 1
    assert chi < freedom + 5 * math.sqrt(2 * freedom)
    torch.testing.assert_close(reported.double(), expected[tokens], atol=1e-6, rtol=1e-5)


def _distribution(logits, temperature=1.0, top_k=None, top_p=1.0):
    probabilities = (logits.double() / temperature).softmax(0)
    order = probabilities.argsort(descending=True).tolist()[:top_k]
    total, reached, kept = sum(probabilities[order].tolist()), 0.0, torch.zeros_like(probabilities)
    for token in order:
        if reached >= top_p * total:
            break
        kept[token] = probabilities[token]
        reached += probabilities[token].item()
    return kept / kept.sum()


def test_noise_of_a_prompt_depends_on_its_seed_alone():
    length = NOISE_BLOCK + 40
    both = Noise([5, 6], 3, length)
    alone = Noise([6], 3, length)
    for start, width in ((0, NOISE_BLOCK), (NOISE_BLOCK, 40)):
        first = both.block(torch.arange(6), start, CPU)
        second = alone.block(torch.arange(3), start, CPU)
        assert first.shape == (width, 6)
        assert torch.equal(first[:, 3:], second)
        assert not torch.equal(first[:, :3], second)
        assert ((first >= 0) & (first < 1)).all()


def test_noise_of_dropped_rows_does_not_shift_the_others():
    whole, part = Noise([5, 6], 2, 600), Noise([5, 6], 2, 600)
    whole.block(torch.arange(4), 0, CPU)
    part.block(torch.tensor([0, 3]), 0, CPU)
    expected = whole.block(torch.arange(4), NOISE_BLOCK, CPU)[:, [0, 3]]
    assert torch.equal(part.block(torch.tensor([0, 3]), NOISE_BLOCK, CPU), expected)


def test_noise_takes_all_64_bits_of_a_seed():
    drawn = [Noise([seed], 1, 4).block(torch.arange(1), 0, CPU) for seed in (1, 1 + 2**32, 1 + 2**63)]
    assert len({tuple(block.flatten().tolist()) for block in drawn}) == 3
