import pytest

from grpo.matrix.judge.bands import band_of, compare, provisional
from tests.support.matrix import measured, published

S = "timing/total"


def one(value, spread, metric=S, **bounds):
    return measured({metric: {"value": value, "unit": "x", "spread": spread, **bounds}})


@pytest.mark.parametrize(
    ("spread", "lower", "upper", "gates"),
    [
        (0.0, 94, 103, True),
        (0.005, 94, 103, True),
        (0.02, 84, 108, True),
        (0.025, 80, 110, True),
        (0.03, 76, 112, False),
    ],
)
def test_the_slow_side_is_three_per_cent_or_four_spreads_and_the_fast_side_twice_that(spread, lower, upper, gates):
    band = band_of(S, one(100.0, spread))
    assert (band.lower, band.upper) == pytest.approx((lower, upper))
    assert band.gates == gates


def test_rates_are_worse_below():
    metric = "performance/tokens_per_second_per_gpu"
    reference = one(100.0, 0.0, metric)
    assert (band_of(metric, reference).lower, band_of(metric, reference).upper) == pytest.approx((97, 106))
    statuses = [compare(metric, value, reference, may_gate=True).status for value in (96, 98, 105, 107)]
    assert statuses == ["worse", "within", "within", "better"]


def test_memory_has_an_upper_bound_only():
    metric = "memory/allocated_gib"
    reference = one(50.0, 0.2, metric)
    assert (band_of(metric, reference).lower, band_of(metric, reference).upper) == (None, pytest.approx(51))
    statuses = [compare(metric, value, reference, may_gate=True).status for value in (1, 50.9, 51.1)]
    assert statuses == ["within", "within", "worse"]


def test_given_bounds_replace_the_rule():
    band = band_of(S, one(100.0, 0.0, lower=50.0, upper=120.0))
    assert (band.lower, band.upper, band.gates) == (50, 120, False)
    assert band_of(S, one(100.0, 0.2, upper=105.0)).gates


def test_a_published_phase_must_besides_move_the_step_by_five_per_cent():
    reference = published(total=200.0, seconds={"refit": 20.0, "generation": 150.0})
    assert band_of("timing/refit", reference).upper == pytest.approx(30)  # 5 % of 200 outweighs 10 % of 20
    assert band_of("timing/generation", reference).upper == pytest.approx(165)  # 10 % of 150 outweighs 5 % of 200
    assert band_of("timing/refit", reference).lower is None
    assert band_of(S, reference).upper == pytest.approx(220)


def test_fewer_than_five_runs_are_provisional():
    assert "4 runs, and 5 are needed" in provisional(measured(runs=4))
    assert provisional(measured(runs=5)) is None
    assert provisional(published()) is None
