import math

import pytest

from grpo.errors import MatrixError
from grpo.matrix.compare.read import side_of, turn_of
from grpo.matrix.load import load_matrix
from tests.support.case_runs import case_run, small_matrix


@pytest.fixture
def directory(tmp_path):
    return case_run(load_matrix(small_matrix(tmp_path / "matrices")), tmp_path / "run", {"refit": 14.0}, started=5.0)


def test_a_side_has_the_steps_after_the_warm_up_and_what_is_outside_them(directory):
    side = side_of(directory, warmup_steps=5)
    assert [record["step"] for record in side.records] == list(range(6, 26))
    assert math.isclose(side.outside, 10.0 - 25 * 147.0)  # the run is pretended to have taken 10 s


def test_a_turn_has_figures_time_and_nodes(directory):
    turn = turn_of(directory, warmup_steps=5)
    assert (turn.values["timing/total"], turn.started, len(turn.hosts)) == (147.0, 5.0, 1)
    with pytest.raises(MatrixError, match="none is left after 30 of warm-up"):
        turn_of(directory, warmup_steps=30)
