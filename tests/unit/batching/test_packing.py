import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.batching.packing import pack

ALGORITHMS = ["first_fit_decreasing", "modified_first_fit_decreasing", "balanced"]
items = st.integers(2, 60).flatmap(
    lambda capacity: st.tuples(st.lists(st.integers(1, capacity), max_size=40), st.just(capacity))
)


def totals(bins, lengths):
    return [sum(lengths[item] for item in each) for each in bins]


def fewest_bins(lengths, capacity):
    """The optimum, by trying every assignment of items, longest first."""
    order = sorted(lengths, reverse=True)

    def fits(rest, free):
        if not rest:
            return True
        tried = set()
        for index, room in enumerate(free):
            if rest[0] <= room and room not in tried:
                tried.add(room)
                if fits(rest[1:], [*free[:index], room - rest[0], *free[index + 1 :]]):
                    return True
        return False

    return next(count for count in range(len(lengths) + 1) if fits(order, [capacity] * count))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(case=items)
def test_every_item_lies_in_one_bin_and_no_bin_exceeds_the_cap(algorithm, case):
    lengths, capacity = case
    bins = pack(lengths, capacity, algorithm)
    assert sorted(item for each in bins for item in each) == list(range(len(lengths)))
    assert all(0 < total <= capacity for total in totals(bins, lengths))
    assert pack(lengths, capacity, algorithm) == bins


@given(
    case=st.integers(6, 30).flatmap(
        lambda c: st.tuples(st.lists(st.integers(1, c), min_size=1, max_size=8), st.just(c))
    )
)
def test_number_of_bins_is_within_the_proven_bounds(case):
    lengths, capacity = case
    optimum = fewest_bins(lengths, capacity)
    assert len(pack(lengths, capacity, "first_fit_decreasing")) <= 11 / 9 * optimum + 6 / 9
    assert len(pack(lengths, capacity, "modified_first_fit_decreasing")) <= 71 / 60 * optimum + 1
    assert len(pack(lengths, capacity, "balanced")) <= 11 / 9 * optimum + 6 / 9


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_seven_items_of_eight_never_share_a_bin_of_eight(algorithm):
    # An estimated cap that balanced by workload once put two of them into one bin of fourteen.
    bins = pack([7] * 8, 8, algorithm)
    assert totals(bins, [7] * 8) == [7] * 8


def test_first_fit_decreasing_on_a_worked_example():
    lengths = [4, 8, 1, 4, 2, 1]
    assert pack(lengths, 10, "first_fit_decreasing") == [[1, 4], [0, 3, 2, 5]]


def test_modified_first_fit_decreasing_does_better_where_first_fit_decreasing_is_at_its_worst():
    # Johnson's example: 9 bins suffice, six of 51 + 26 + 23 and three of 27 + 27 + 23 + 23.
    lengths = [51] * 6 + [27] * 6 + [26] * 6 + [23] * 12
    assert len(pack(lengths, 100, "first_fit_decreasing")) == 11
    assert len(pack(lengths, 100, "modified_first_fit_decreasing")) == 10
    bins = pack(lengths, 100, "modified_first_fit_decreasing")
    assert [sorted(lengths[item] for item in each) for each in bins[:6]] == [[23, 26, 51]] * 6


def test_balanced_bins_have_nearly_equal_sums():
    lengths = [9, 8, 7, 6, 5, 4, 3, 2]
    assert sorted(totals(pack(lengths, 12, "balanced"), lengths)) == [11, 11, 11, 11]
    assert sorted(totals(pack(lengths, 12, "first_fit_decreasing"), lengths)) == [8, 12, 12, 12]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("lengths", "message"), [([3, 9], "sequence 1 has 9 tokens"), ([0], "sequence 0 has 0 tokens")]
)
def test_an_impossible_item_is_refused_by_name(algorithm, lengths, message):
    with pytest.raises(ValueError, match=message):
        pack(lengths, 8, algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_to_pack(algorithm):
    assert pack([], 8, algorithm) == []
