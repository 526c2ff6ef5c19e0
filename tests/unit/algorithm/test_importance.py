import math

import pytest
import torch

from grpo.algorithm.importance import importance_weights
from grpo.algorithm.layout import TokenLayout

W = [0.2, 0.5, 1, 2, 5, 8]
KINDS = ("token", "sequence", "tis", "mis", "icepop", "seq-mask-tis")
WIDE = {"minimum": 1e-3, "maximum": 1e3, "cap": 1e3}


def compute(differences, kind, *, ids=None, mask=None, dtype=torch.float64, **options):
    ids = torch.zeros(len(differences), dtype=torch.int64) if ids is None else torch.tensor(ids)
    mask = torch.ones(len(differences), dtype=torch.bool) if mask is None else torch.tensor(mask)
    generation = torch.full((len(differences),), -2.0, dtype=dtype)
    old = generation + torch.tensor(differences, dtype=dtype)
    layout = TokenLayout(mask, ids, int(ids.max()) + 1)
    return importance_weights(old, generation, layout, kind=kind, **options)


@pytest.mark.parametrize(
    ("kind", "options", "expected", "outside"),
    [
        ("token", {}, W, None),
        ("tis", {"cap": 2.0}, [0.2, 0.5, 1, 2, 2, 2], 2),
        ("mis", {"cap": 2.0}, [0.2, 0.5, 1, 2, 0, 0], 2),
        ("icepop", {"minimum": 0.5, "maximum": 5.0}, [0, 0.5, 1, 2, 5, 0], 2),
    ],
)
def test_the_table(kind, options, expected, outside):
    # A hair inside the bounds where the table is exactly on one: exp(log(w)) need not be w.
    exact = [math.log(w) - 1e-12 * (w in (2, 5)) + 1e-12 * (w == 0.5) for w in W]
    result = compute(exact, kind, **options)
    assert result.weights.tolist() == pytest.approx(expected, abs=1e-9)
    assert (None if result.outside is None else int(result.outside.sum())) == outside
    assert not result.nonfinite.any()


@pytest.mark.parametrize(("kind", "bound"), [("tis", {"cap": 1.0}), ("mis", {"cap": 1.0})])
def test_a_weight_on_the_cap_is_inside(kind, bound):
    result = compute([0.0], kind, **bound)
    assert result.weights.tolist() == [1.0]
    assert not result.outside.any()


@pytest.mark.parametrize("bounds", [(1.0, 2.0), (0.5, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize("kind", ["icepop", "seq-mask-tis"])
def test_bounds_are_inclusive(kind, bounds):
    result = compute([0.0], kind, minimum=bounds[0], maximum=bounds[1])
    assert result.weights.tolist() == [1.0]
    assert not result.outside.any()


def test_sequence_is_the_product_and_not_the_geometric_mean():
    result = compute([0.01] * 100, "sequence")
    assert result.weights.tolist() == pytest.approx([2.71828] * 100, abs=1e-5)


def test_sequences_are_apart():
    result = compute([0.1, 0.2, 0.3, 0.4], "sequence", ids=[0, 1, 0, 1])
    assert result.weights.tolist() == pytest.approx([math.exp(0.4), math.exp(0.6)] * 2)


def test_seq_mask_tis_drops_sequences_by_their_geometric_mean():
    result = compute([0.001, 0.01, 0.001, -0.001], "seq-mask-tis", ids=[0, 1, 0, 1], minimum=0.999, maximum=1.002)
    assert result.weights.tolist() == pytest.approx([1.0010005, 0, 1.0010005, 0], abs=1e-6)
    assert result.outside.tolist() == [False, True, False, True]
    assert result.outside_sequences.tolist() == [False, True]


def test_seq_mask_tis_leaves_token_weights_of_kept_sequences_uncapped():
    result = compute([3.0, -3.0], "seq-mask-tis", minimum=0.999, maximum=1.002, cap=2.0)
    assert result.weights.tolist() == pytest.approx([math.exp(3), math.exp(-3)])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_a_non_finite_difference_gives_weight_zero_before_any_bound(kind, bad):
    result = compute([bad, 0.0, 0.1], kind, ids=[0, 0, 1], **WIDE)
    whole_sequence = kind in ("sequence", "seq-mask-tis")
    assert result.weights.tolist() == pytest.approx([0.0, 0.0 if whole_sequence else 1.0, math.exp(0.1)])
    assert result.nonfinite[0]
    assert not result.nonfinite[2]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["tis", "mis", "icepop"])
def test_a_non_finite_token_is_not_outside_the_bounds_as_well(kind, bad):
    result = compute([bad, 5.0, 0.0], kind, cap=2.0, minimum=0.5, maximum=5.0)
    assert result.outside.tolist() == [False, True, False]
    assert result.nonfinite.tolist() == [True, False, False]


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_that_overflows_is_never_infinite(kind):
    result = compute([200.0, 0.0], kind, ids=[0, 1], dtype=torch.float32, **WIDE)
    assert result.weights.isfinite().all()
    assert result.weights[0].item() == (1e3 if kind == "tis" else 0.0)
    assert result.weights[1].item() == 1.0
    assert bool(result.nonfinite[0]) == (kind in ("token", "sequence"))


@pytest.mark.parametrize("kind", KINDS)
def test_masked_tokens_count_nowhere(kind):
    result = compute([0.1, math.nan, 0.2, 60.0], kind, mask=[True, False, True, False], **WIDE)
    plain = compute([0.1, 0.2], kind, **WIDE)
    assert result.weights[[0, 2]].tolist() == plain.weights.tolist()
    assert not result.nonfinite.any()
    assert result.outside is None or not result.outside.any()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_carry_no_gradient(kind):
    layout = TokenLayout(torch.tensor([True]), torch.tensor([0]), 1)
    old = torch.tensor([-1.0], requires_grad=True)
    assert not importance_weights(old, torch.tensor([-1.1]), layout, kind=kind, **WIDE).weights.requires_grad


def test_bounds_that_are_missing_or_crossed_are_refused():
    with pytest.raises(ValueError, match="seq-mask-tis needs minimum <= maximum, not None and 2"):
        compute([0.0], "seq-mask-tis", maximum=2.0)
    with pytest.raises(ValueError, match=r"icepop needs minimum <= maximum, not 3\.0 and 2\.0"):
        compute([0.0], "icepop", minimum=3.0, maximum=2.0)
