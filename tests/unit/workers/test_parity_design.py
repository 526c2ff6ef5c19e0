"""The cells of the parity matrix: a covering design for pull requests, the full product for nights."""

import itertools
from typing import get_args

import pytest

from grpo.config.schema import LossFn
from tests.support.parity import AXES, MATRIX, covering, name_of_value, of_layout, product

COVERED = MATRIX.suites["parity"].factors
CROSSED = MATRIX.suites["parity-product"].factors
COSTLY = 8  # ranks


@pytest.mark.parametrize("axis", AXES)
def test_the_matrix_leaves_no_value_out(axis):
    names = [name_of_value(value) for value in AXES[axis]]
    assert len(set(names)) == len(names)
    assert CROSSED.get(axis, names) == names
    if axis != "layout":
        assert COVERED[axis] == names


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(COVERED, 2)), ids=str)
def test_every_pair_of_values_is_in_some_cell_of_a_pull_request(one, other):
    present = {(name_of_value(cell[one]), name_of_value(cell[other])) for cell in covering()}
    assert present == set(itertools.product(COVERED[one], COVERED[other]))


def parts(cell):
    """The cell with its layout taken apart: the backend, the degrees of parallelism and what is cut by sequence."""
    return {**cell["layout"]._asdict(), **{name: value for name, value in cell.items() if name != "layout"}}


def pairs(cells):
    return {
        frozenset(((one, str(cell[one])), (other, str(cell[other]))))
        for cell in map(parts, cells)
        for one, other in itertools.combinations(cell, 2)
    }


def test_a_pull_request_covers_every_pair_of_values_of_two_axes_counted():
    """The layout's parts are axes too; pairs that no layout has (sequence parallelism of one rank) are left out."""
    degrees = 6 + 4 + 3 + 4 + 6 + 6 + 6 + 4 + 3 + 4  # of backend, data, tensor, pipeline, sequence parallelism
    others = (3, 3, 3, 5, 4, 3, 2, 2, 2, 2, 2, 4)  # batching to state
    with_degrees = (2 + 3 + 2 + 2 + 2) * sum(others)
    among_others = sum(a * b for a, b in itertools.combinations(others, 2))
    found = pairs(covering())
    assert len(found) == degrees + with_degrees + among_others == 46 + 385 + 556
    assert found == pairs(product())


def test_no_loss_kind_and_no_aggregation_is_left_out():
    fields = LossFn.model_fields
    assert set(AXES["kind"]) == set(get_args(fields["kind"].annotation))
    assert set(AXES["aggregation"]) == set(get_args(fields["aggregation"].annotation))


def test_the_product_is_cut_into_one_part_a_layout():
    parts_of_it = [of_layout(product(), layout) for layout in AXES["layout"]]
    assert [len(part) for part in parts_of_it] == [27] * 27
    assert [cell for part in parts_of_it for cell in part] == product()


def test_a_night_runs_the_full_product_and_every_pair_of_values_too():
    crossed = [tuple(cell[name] for name in CROSSED) for cell in product()]
    assert sorted(map(str, crossed)) == sorted(map(str, itertools.product(*(AXES[name] for name in CROSSED))))
    for one, other in itertools.combinations(AXES, 2):
        assert len({(cell[one], cell[other]) for cell in product()}) == len(AXES[one]) * len(AXES[other])


def test_a_pull_request_has_every_layout_below_four_ranks_and_the_richest_from_there_on():
    layouts = {cell["layout"] for cell in covering()}
    rich = {each for each in AXES["layout"] if each.tensor == 1 or each.sequence_parallel}
    assert {each for each in AXES["layout"] if each.world < 4} <= layouts
    assert {each for each in rich if each.world < COSTLY} <= layouts
    assert {each.backend for each in layouts if each.world == COSTLY} == {"pytorch", "megatron"}
    assert max(each.world for each in layouts) == COSTLY
    for backend, pipelines in (("pytorch", {1}), ("megatron", {1, 2})):
        own = [each for each in layouts if each.backend == backend]
        assert {each.data for each in own} == {1, 2, 4}
        assert {(each.tensor, each.sequence_parallel) for each in own} == {(1, False), (2, False), (2, True)}
        assert {each.pipeline for each in own} == pipelines
