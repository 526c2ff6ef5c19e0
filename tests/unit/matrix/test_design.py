import itertools

import pytest

from grpo.matrix.design import cells, covering, product
from grpo.matrix.schema import Suite

FACTORS = {"layout": ["1", "2", "4"], "batch": ["a", "b", "c", "d"], "loss": ["x", "y"], "tied": ["no", "yes"]}


def suite(**changes):
    fields = {
        "id": "s", "entry": "s", "family": "f", "layer": "functional", "partitions": ["here"], "time_limit": "00:01:00",
        "tier": "L0", "cadence": "pr", "owner": "o", "tests": ["t.py"], "factors": FACTORS,
    }  # fmt: skip
    return Suite.model_validate(fields | changes)


def test_every_pair_of_values_is_in_a_cell_of_few():
    chosen = covering(FACTORS)
    for a, b in itertools.combinations(FACTORS, 2):
        assert {(cell[a], cell[b]) for cell in chosen} == set(itertools.product(FACTORS[a], FACTORS[b]))
    assert 12 <= len(chosen) <= 16
    assert all(list(cell) == list(FACTORS) for cell in chosen)
    assert covering(FACTORS) == chosen


@pytest.mark.parametrize("factors", [{}, {"one": ["a", "b"]}])
def test_fewer_than_two_factors(factors):
    assert covering(factors) == product(factors)


def test_a_product_has_every_cell_once():
    chosen = product(FACTORS)
    assert len(chosen) == 48
    assert len({tuple(cell.values()) for cell in chosen}) == 48


def test_a_suite_says_which():
    assert cells(suite()) == covering(FACTORS)
    assert cells(suite(design="product")) == product(FACTORS)
