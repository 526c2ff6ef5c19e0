import math

import pytest
import torch

from grpo.algorithm.groups import RewardGroups


def groups_of(rewards, ids, dtype=torch.float64):
    return RewardGroups.of(torch.tensor(rewards, dtype=dtype), torch.tensor(ids))


def test_sorted_by_group_then_reward():
    groups = groups_of([3, 1, math.nan, 2, 0], [8, 5, 5, 8, 5])
    assert groups.positions.tolist() == [4, 1, 3, 0]
    assert groups.rewards.tolist() == [0, 1, 2, 3]
    assert groups.index.tolist() == [0, 0, 1, 1]
    assert groups.counts.tolist() == [2, 2]


def test_extremes_of_a_group_and_of_the_others():
    groups = groups_of([0, 1, 5, 7, math.nan], [0, 0, 0, 1, 2])
    assert groups.extremes().smallest[:2].tolist() == [0, 7]
    assert groups.extremes().largest[:2].tolist() == [5, 7]
    assert groups.extremes().largest[2].isnan()
    others = groups.extremes_of_others()
    assert others.smallest[:3].tolist() == [1, 0, 0]
    assert others.largest[:3].tolist() == [5, 5, 1]
    assert others.smallest[3].isnan()
    assert others.largest[3].isnan()


@pytest.mark.parametrize(
    ("dtype", "rewards", "informative"),
    [
        (torch.float64, [0.1 + 0.2, 0.3], False),
        (torch.float64, [0.3, 0.3 + 1e-12], True),
        (torch.float32, [0.35, 0.35 + 1e-8], False),
        (torch.float32, [0.35, 0.3501], True),
        (torch.float32, [0.0, 1e-30], True),
        (torch.float32, [-1.0, 1.0], True),
        (torch.bfloat16, [0.5, 1.0], True),
    ],
)
def test_informative_is_a_comparison_up_to_rounding(dtype, rewards, informative):
    assert groups_of(rewards, [0, 0], dtype).informative().tolist() == [informative]


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"must both be \[B\]"):
        RewardGroups.of(torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.int64))
