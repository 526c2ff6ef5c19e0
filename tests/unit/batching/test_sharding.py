import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.batching.micro_batches import Dynamic, Packed, Static
from grpo.batching.sharding import dummy, plan_ranks, sequence_work, split_by_work

PLANNINGS = [Static(2), Static(3, 4), Dynamic(64, 4), Packed(64), Packed(64, "balanced", 4)]


def test_split_on_a_worked_example():
    # 9 and 7; 6 to the second (13), 5 to the first (14), 4 to the second (17), 1 to the first (15)
    assert split_by_work([1, 4, 9, 5, 7, 6], 2) == [[0, 2, 3], [1, 4, 5]]


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40), st.integers(1, 8))
def test_split_has_every_item_once_and_is_near_the_best(work, ranks):
    shares = split_by_work(work, ranks)
    assert sorted(item for share in shares for item in share) == list(range(len(work)))
    assert len(shares) == ranks
    loads = [sum(work[item] for item in share) for share in shares]
    bound = max(sum(work) / ranks, *work)
    assert max(loads) <= bound * (4 / 3 + 1e-9) + max(work) * (len(work) > ranks)
    assert split_by_work(work, ranks) == shares


def test_split_is_by_work_and_not_by_count():
    shares = split_by_work([100, *[1] * 10], 2)
    assert shares == [[0], list(range(1, 11))]


@pytest.mark.parametrize("planning", PLANNINGS, ids=str)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=30), st.integers(1, 6))
def test_every_rank_runs_as_many_and_every_sequence_runs_once(planning, lengths, ranks):
    plans = plan_ranks(lengths, [float(each) for each in lengths], planning, ranks)
    assert len(plans) == ranks
    assert len({len(plan) for plan in plans}) == 1
    rows = sorted(row for plan in plans for each in plan for row in each.rows)
    assert rows == list(range(len(lengths)))
    for plan in plans:
        for each in plan:
            held = [lengths[row] for row in each.rows]
            assert each.computed_tokens >= sum(held)
            assert each.computed_tokens % planning.round_to == 0
            if not held:
                assert each == dummy(planning.round_to)
            elif each.width is not None:
                assert each.width >= max(held)
                assert each.computed_tokens == each.width * len(held)
            if not isinstance(planning, Static) and held:
                assert each.computed_tokens <= planning.max_tokens


def test_dummies_come_only_where_a_rank_has_too_few_sequences():
    # Fault e1: one rank has a single long sequence, the other ten short ones.
    first, second = plan_ranks([100, *[1] * 10], [100.0, *[1.0] * 10], Static(2), 2)
    assert [each.rows for each in first] == [[0], [], [], [], []]
    assert [each.rows for each in second] == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
    # A rank with sequences enough makes smaller micro-batches instead.
    first, second = plan_ranks([6, 6, 3, 3, 3, 3], [6.0, 6.0, 3.0, 3.0, 3.0, 3.0], Packed(12), 2)
    assert all(each.rows for each in first + second)


def test_fewer_sequences_than_ranks():
    plans = plan_ranks([3, 5], [3.0, 5.0], Static(4), 4)
    assert [[each.rows for each in plan] for plan in plans] == [[[1]], [[0]], [[]], [[]]]


def test_a_sequence_above_the_cap_is_refused_on_every_rank_alike():
    with pytest.raises(ValueError, match="above the cap"):
        plan_ranks([3, 65], [3.0, 65.0], Packed(64), 2)


def test_work_is_the_flops_of_matrices_and_causal_attention():
    # 8B Llama: 4,096 wide, 32 layers; at 4,096 tokens attention is 2 x 4096^2 x 32 x 4096 FLOPs
    flops = sequence_work(4096, parameters=7_504_924_672, attention_width=32 * 4096)
    assert flops == pytest.approx(2 * 4096 * 7_504_924_672 + 2 * 4096**2 * 32 * 4096)
    assert sequence_work(200, parameters=1, attention_width=100) > 2 * sequence_work(
        100, parameters=1, attention_width=100
    )
