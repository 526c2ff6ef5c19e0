import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.workers.megatron.shares import balanced_shards


def test_work_is_balanced_and_not_counts():
    assert balanced_shards([100, 1, 1, 1, 1, 1, 95], 2) == [[0], [1, 2, 3, 4, 5, 6]]


def test_fewer_items_than_shards_leave_some_empty():
    assert balanced_shards([3, 5], 3) == [[1], [0], []]
    assert balanced_shards([], 2) == [[], []]


@given(st.lists(st.floats(0.1, 100), max_size=30), st.integers(1, 6))
def test_every_item_is_in_one_shard_and_none_is_far_above_the_mean(work, count):
    shards = balanced_shards(work, count)
    assert sorted(item for shard in shards for item in shard) == list(range(len(work)))
    assert all(shard == sorted(shard) for shard in shards)
    sums = [sum(work[item] for item in shard) for shard in shards]
    # Graham's bound: the last item of the largest shard was put on the least.
    assert max(sums) <= sum(work) / count + max(work, default=0) * (1 - 1 / count) + 1e-9


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_same_input_gives_the_same_shards(count):
    assert balanced_shards([1.0] * 9, count) == balanced_shards([1.0] * 9, count)
