import math

import pytest
import torch

from grpo.algorithm.shaping import informative_samples, overlong_penalty, scale_rewards


def test_overlong_penalty():
    lengths = torch.tensor([0, 16384, 16385, 18432, 20480, 30000])
    result = overlong_penalty(lengths, max_length=20480, buffer_length=4096)
    assert result.tolist() == pytest.approx([0, 0, -0.000244, -0.5, -1, -1], abs=1e-6)
    assert result.dtype == torch.float32
    doubled = overlong_penalty(lengths, max_length=20480, buffer_length=4096, penalty=2.0)
    torch.testing.assert_close(doubled, 2 * result)


@pytest.mark.parametrize("buffer", [0, -1, 11])
def test_the_buffer_must_fit(buffer):
    with pytest.raises(ValueError, match=f"buffer_length {buffer} must be between 1 and max_length 10"):
        overlong_penalty(torch.tensor([1]), max_length=10, buffer_length=buffer)


def test_scale_rewards_maps_and_clamps():
    rewards = torch.tensor([0.0, 0.5, 1.0, 2.0, -3.0, math.nan])
    result = scale_rewards(rewards, source_min=0.0, source_max=1.0, target_min=-1.0, target_max=3.0)
    assert result[:5].tolist() == [-1.0, 1.0, 3.0, 3.0, -1.0]
    assert result[5].isnan()


def test_scaling_to_a_falling_range():
    result = scale_rewards(torch.tensor([1.0, 4.0]), source_min=0.0, source_max=4.0, target_min=1.0, target_max=0.0)
    assert result.tolist() == [0.75, 0.0]


@pytest.mark.parametrize("source", [(1.0, 1.0), (2.0, 1.0)])
def test_an_empty_source_range_is_refused(source):
    with pytest.raises(ValueError, match="source_min"):
        scale_rewards(torch.zeros(1), source_min=source[0], source_max=source[1], target_min=0.0, target_max=1.0)


def test_groups_whose_raw_rewards_differ_are_kept():
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, math.nan, 0.5, math.nan, 0.0])
    groups = torch.tensor([4, 1, 4, 2, 2, 2, 9, 9, 1])
    assert informative_samples(rewards, groups).tolist() == [False, False, False, True, True, True] + [False] * 3


def test_selection_sees_raw_rewards_not_shaped_ones():
    """All right, of different lengths: the shaped rewards differ and the group still teaches nothing."""
    raw = torch.tensor([1.0, 1.0, 1.0])
    groups = torch.zeros(3, dtype=torch.int64)
    shaped = raw + overlong_penalty(torch.tensor([1, 9, 10]), max_length=10, buffer_length=4)
    assert informative_samples(shaped, groups).all()
    assert not informative_samples(raw, groups).any()
