import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.algorithm.layout import TokenLayout

IDS = torch.tensor([2, 0, 2, 2, 4])
MASK = torch.tensor([True, True, False, True, False])


def test_counts_trained_tokens():
    assert TokenLayout(MASK, IDS, 6).sequence_tokens.tolist() == [1, 0, 2, 0, 0, 0]


def test_sum_mean_and_spread():
    layout = TokenLayout(MASK, IDS, 6)
    values = torch.tensor([1.0, 2.0, 0.0, 5.0, 0.0])
    assert layout.sum(values).tolist() == [2, 0, 6, 0, 0, 0]
    assert layout.mean(values).tolist() == [2, 0, 3, 0, 0, 0]
    assert layout.spread(torch.arange(6)).tolist() == IDS.tolist()


def test_gradients():
    values = torch.randn(5, dtype=torch.float64, requires_grad=True)
    layout = TokenLayout(MASK, IDS, 6)
    assert torch.autograd.gradcheck(lambda v: layout.spread(layout.mean(v).exp()), values)


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=40))
def test_sum_is_the_sum_in_order(ids):
    values = torch.linspace(-1, 1, len(ids))
    layout = TokenLayout(torch.ones(len(ids), dtype=torch.bool), torch.tensor(ids, dtype=torch.int64), 7)
    expected = torch.zeros(7)
    for i, value in zip(ids, values, strict=True):
        expected[i] += value
    assert torch.equal(layout.sum(values), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_and_gradients_are_reproducible(threads):
    """Bitwise, over as many tokens as make torch use several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ids = torch.arange(100_000) % 7
        layout = TokenLayout(torch.ones_like(ids, dtype=torch.bool), ids, 7)
        values = torch.randn(100_000, requires_grad=True)
        results = []
        for _ in range(3):
            total = layout.spread(layout.sum(values)).square().sum()
            results.append(torch.autograd.grad(total, values)[0])
        assert all(torch.equal(results[0], other) for other in results)
    finally:
        torch.set_num_threads(before)
