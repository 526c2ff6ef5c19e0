import numpy as np
import pytest
import torch

from grpo.refit.checksum import Checksums, chosen


def test_a_sum_is_that_of_the_words():
    flat = torch.randint(0, 256, (64,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    sums = Checksums("full", 1, 0)
    sums.add(0, flat)
    assert sums.values() == {0: int(flat.numpy().view(np.int32).astype(np.int64).sum())}
    flat[17] ^= 1
    other = Checksums("full", 1, 0)
    other.add(0, flat)
    assert other.values() != sums.values()


@pytest.mark.parametrize("buckets", [1, 3, 8, 21])
def test_sampled_looks_at_every_bucket_within_eight_versions(buckets):
    seen = [chosen("sampled", buckets, version) for version in range(5, 13)]
    assert frozenset().union(*seen) == frozenset(range(buckets))
    assert all(1 <= len(each) <= -(-buckets // 8) for each in seen)


def test_off_looks_at_none_and_full_at_all():
    assert chosen("off", 5, 3) == frozenset()
    assert chosen("full", 5, 3) == frozenset(range(5))
    assert chosen("sampled", 0, 3) == frozenset()
    assert Checksums("off", 5, 3).values() == {}
