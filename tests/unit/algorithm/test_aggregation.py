import pytest
import torch

from grpo.algorithm.aggregation import Denominators, aggregate, token_weights
from grpo.algorithm.layout import TokenLayout

KINDS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")
EXPECTED = {"token_mean": 2.5, "seq_mean_token_mean": 2.0, "seq_mean_token_sum": 10.0, "seq_mean_token_sum_norm": 1.25}


def loss(kind, sequences, denominators=None):
    """`sequences`: for each, its token losses, None where masked."""
    flat = [value for sequence in sequences for value in sequence]
    ids = torch.tensor([i for i, sequence in enumerate(sequences) for _ in sequence])
    mask = torch.tensor([value is not None for value in flat])
    layout = TokenLayout(mask, ids, len(sequences))
    if denominators is None:
        denominators = Denominators(float(mask.sum()), float((layout.sequence_tokens > 0).sum()))
    weights = token_weights(layout, denominators, kind=kind, norm_length=8, dtype=torch.float64)
    values = torch.tensor([123.0 if value is None else value for value in flat], dtype=torch.float64)
    return aggregate(values, weights).item()


SHORT, LONG = [1.0] * 2, [3.0] * 6


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_2_and_6_with_losses_1_and_3(kind):
    assert loss(kind, [SHORT, LONG]) == pytest.approx(EXPECTED[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_of_one_add_up_to_the_batch(kind):
    """Denominators are of the whole batch: a mean per micro-batch, then averaged, gives 2.0 for token_mean."""
    whole = Denominators(8.0, 2.0)
    assert loss(kind, [SHORT], whole) + loss(kind, [LONG], whole) == pytest.approx(EXPECTED[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_with_few_tokens_weigh_by_their_tokens(kind):
    """Two ranks with 1 and 9 trained tokens against both sequences on one."""
    whole = Denominators(10.0, 2.0)
    split = loss(kind, [[5.0]], whole) + loss(kind, [[1.0] * 9], whole)
    assert split == pytest.approx(loss(kind, [[5.0], [1.0] * 9]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", [2, 3])
def test_repeating_every_row_changes_nothing(kind, times):
    assert loss(kind, [SHORT, LONG] * times) == pytest.approx(EXPECTED[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_wholly_masked_sequence_is_in_no_denominator(kind):
    assert loss(kind, [SHORT, [None] * 5, LONG]) == pytest.approx(EXPECTED[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_masked_tokens_are_in_no_denominator(kind):
    assert loss(kind, [[None, *SHORT], [3.0, None, *LONG[1:], None]]) == pytest.approx(EXPECTED[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_trained_is_exactly_zero(kind):
    assert loss(kind, [[None] * 3, [None]]) == 0.0


@pytest.mark.parametrize("length", [None, 0, -1.0])
def test_the_norm_length_must_be_given(length):
    layout = TokenLayout(torch.tensor([True]), torch.tensor([0]), 1)
    with pytest.raises(ValueError, match=f"positive norm_length, not {length}"):
        token_weights(
            layout, Denominators(1, 1), kind="seq_mean_token_sum_norm", norm_length=length, dtype=torch.float32
        )


def test_an_unknown_aggregation_is_refused():
    layout = TokenLayout(torch.tensor([True]), torch.tensor([0]), 1)
    with pytest.raises(ValueError, match="'mean': token_mean"):
        token_weights(layout, Denominators(1, 1), kind="mean", norm_length=None, dtype=torch.float32)
