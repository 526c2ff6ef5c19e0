import math

import pytest

from grpo.errors import MatrixError
from grpo.matrix.compare.abba import TurnRun, in_turn

ABBA = ["OLD", "NEW", "NEW", "OLD"]


def runs(new=1.0, pairs=6, **changes):
    """A sequence in which the machine becomes slower by 1 % a run, which the order cancels."""
    made = []
    for at in range(2 * pairs):
        total = 100.0 * 1.01**at * (new if ABBA[at % 4] == "NEW" else 1.0)
        values = {"timing/total": total, "timing/refit": 0.1 * total, "timing/checkpoint": 0.0}
        fields = {"values": values, "started": float(at), "hosts": ("a", "b")}
        made.append(TurnRun(f"run{at}", **fields | changes))
    return made


def test_a_slower_change_is_found_through_a_drifting_machine():
    result = in_turn(runs(new=1.05))
    assert (result.pairs, result.slower) == (6, True)
    total = result.rows[0]
    assert total.metric == "timing/total"
    assert math.isclose(total.median, 1.05, rel_tol=0.011)
    assert total.p == 1 / 64
    assert [row.metric for row in result.rows] == ["timing/total", "timing/refit"]


@pytest.mark.parametrize("new", [1.0, 0.9, 1.005])
def test_no_change_a_faster_one_and_a_small_one_are_not_slower(new):
    assert not in_turn(runs(new=new)).slower


def test_a_large_median_that_chance_explains_is_not_slower():
    values = [100.0, 110.0, 110.0, 100.0] * 3
    values[8:12] = [100.0, 60.0, 55.0, 100.0]
    noisy = [TurnRun(f"r{at}", {"timing/total": value}, None, ()) for at, value in enumerate(values)]
    result = in_turn(noisy)
    assert result.rows[0].median > 1.02
    assert not result.slower


def test_fewer_than_six_pairs_are_no_experiment():
    with pytest.raises(MatrixError, match="10 runs: ABBA takes 6"):
        in_turn(runs(pairs=5))
    with pytest.raises(MatrixError, match="13 runs"):
        in_turn([*runs(), TurnRun("more", {}, None, ())])


def test_the_order_is_that_of_time_and_the_nodes_are_the_same():
    swapped = runs()
    swapped[0], swapped[3] = swapped[3], swapped[0]
    with pytest.raises(MatrixError, match="started before"):
        in_turn(swapped)
    moved = runs()
    moved[5] = TurnRun("run5", moved[5].values, moved[5].started, ("c",))
    with pytest.raises(MatrixError, match="run5 was on c"):
        in_turn(moved)
    twice = runs()
    twice[1] = twice[0]
    with pytest.raises(MatrixError, match="run0 is given twice"):
        in_turn(twice)


def test_every_run_needs_a_total():
    with pytest.raises(MatrixError, match="timing/total"):
        in_turn(runs(values={"timing/refit": 1.0}))
