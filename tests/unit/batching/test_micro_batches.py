import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.batching.micro_batches import Dynamic, Packed, Static, padding_efficiency, plan_micro_batches

lengths_lists = st.lists(st.integers(1, 50), max_size=30)
plannings = st.one_of(
    st.builds(Static, st.integers(1, 40)),
    st.builds(Dynamic, st.integers(64, 200), st.sampled_from([1, 8, 64])),
    st.builds(
        Packed,
        st.integers(50, 200),
        st.sampled_from(["first_fit_decreasing", "modified_first_fit_decreasing", "balanced"]),
        st.integers(1, 9),
    ),
)


@given(lengths=lengths_lists, planning=plannings, data=st.data())
def test_every_sequence_is_planned_once_under_the_cap(lengths, planning, data):
    count = data.draw(st.integers(0, len(lengths)))
    plan = plan_micro_batches(lengths, planning, min_count=count)
    assert sorted(row for each in plan for row in each.rows) == list(range(len(lengths)))
    assert len(plan) >= count
    for each in plan:
        if isinstance(planning, Packed):
            assert each.width is None
            held = sum(lengths[row] for row in each.rows)
            assert held <= planning.max_tokens
            assert held <= each.computed_tokens < held + planning.round_to
            assert each.computed_tokens % planning.round_to == 0
            assert each.computed_tokens <= planning.max_tokens or len(each.rows) == 1
        else:
            assert max(lengths[row] for row in each.rows) <= each.width
            assert each.computed_tokens == each.width * len(each.rows)
        if isinstance(planning, Static):
            assert len(each.rows) <= planning.rows
        if isinstance(planning, Dynamic):
            assert each.computed_tokens <= planning.max_tokens
            assert each.width % planning.round_to == 0
    assert plan_micro_batches(lengths, planning, min_count=count) == plan
    assert 0 < padding_efficiency(lengths, plan) <= 1


def test_static_keeps_the_order_and_pads_each_micro_batch_to_its_own_longest():
    plan = plan_micro_batches([3, 5, 2, 9, 4], Static(2))
    assert [(each.rows, each.width) for each in plan] == [([0, 1], 5), ([2, 3], 9), ([4], 4)]


def test_dynamic_puts_similar_lengths_together():
    plan = plan_micro_batches([1, 100, 2, 99, 3, 98], Dynamic(200, 1))
    assert [(each.rows, each.width) for each in plan] == [([1, 3], 100), ([5, 4], 98), ([2, 0], 2)]


def test_dynamic_counts_the_rounded_width_against_the_cap():
    assert [each.rows for each in plan_micro_batches([5, 5, 5], Dynamic(16, 8))] == [[0, 1], [2]]
    with pytest.raises(ValueError, match=r"sequence 0 has 9 tokens \(16 padded"):
        plan_micro_batches([9], Dynamic(15, 8))


def test_a_sequence_that_leaves_no_room_for_padding_is_alone_and_widens_no_other_row():
    plan = plan_micro_batches([25, 50, 24, 1], Packed(50, round_to=4))
    assert [(each.rows, each.computed_tokens) for each in plan] == [([1], 52), ([0, 3], 28), ([2], 24)]
    assert [each.computed_tokens for each in plan_micro_batches([3, 2], Packed(3, round_to=4))] == [4, 4]


def test_packing_of_a_long_sequence_is_refused_by_name():
    with pytest.raises(ValueError, match="sequence 1 has 9 tokens"):
        plan_micro_batches([3, 9], Packed(8))


def test_more_micro_batches_than_sequences_are_refused():
    with pytest.raises(ValueError, match="2 sequences cannot make 3"):
        plan_micro_batches([3, 4], Static(2), min_count=3)


def test_efficiency_on_skewed_lengths():
    lengths = [1000] + [100] * 9
    assert padding_efficiency(lengths, plan_micro_batches(lengths, Static(10))) == pytest.approx(0.19)
    assert padding_efficiency(lengths, plan_micro_batches(lengths, Dynamic(1000, 1))) == 1.0
    assert padding_efficiency(lengths, plan_micro_batches(lengths, Packed(1000))) == 1.0
    assert padding_efficiency([], []) == 1.0
