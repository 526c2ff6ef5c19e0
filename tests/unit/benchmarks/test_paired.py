import pytest

from benchmarks.paired import Block, Spread, part, ratios


def test_a_spread_is_the_median_between_the_extremes():
    assert Spread.of([5.0, 1.0, 2.0]) == Spread(2.0, 1.0, 5.0)
    assert Spread.of([4.0, 1.0, 2.0, 100.0]) == Spread(3.0, 1.0, 100.0)
    with pytest.raises(ValueError, match="no figures"):
        Spread.of([])


def test_ratios_are_of_each_round_not_of_the_medians():
    # Ours is half of theirs in every round, while the machine is slower by the round.
    assert ratios([1.0, 3.0, 20.0], [2.0, 6.0, 40.0]) == Spread(0.5, 0.5, 0.5)
    # The ratio of the medians would be 3 / 4.
    assert ratios([1.0, 3.0, 9.0], [4.0, 3.0, 12.0]) == Spread(0.75, 0.25, 1.0)


def test_a_side_that_missed_a_round_is_refused():
    with pytest.raises(ValueError, match="2 figures cannot be paired with 3"):
        ratios([1.0, 2.0], [1.0, 2.0, 3.0])


def test_what_no_part_names_is_the_rest():
    block = Block(1.0, {"generation": 0.25, "training": 0.5})
    assert block.rest == 0.25
    assert part([block, Block(2.0)], "generation") == [0.25, 0.0]
