import numpy as np
import pytest
import torch

from grpo.refit.checksum import Checksums, chosen


def summed(flat):
    sums = Checksums("full", 1, 0)
    sums.add(0, flat)
    return sums.values()[0]


def random_bytes(count):
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("words", [0, 2, 511, 512, 700, 3 * 512, 5 * 512 + 3])
def test_a_sum_is_that_of_the_words_by_their_places(words):
    flat, whole = random_bytes(8 * words), words // 512 * 512
    expected = 0
    for place, word in enumerate(flat.numpy().view(np.int64).tolist()):
        row, column = divmod(place, 512)
        expected += word * (2 * row + 1 + 2 * (column + 1) if place < whole else 2 * (whole // 512 + place - whole) + 1)
    assert summed(flat) % 2**64 == expected % 2**64


@pytest.mark.parametrize("words", [6, 512, 2000])
def test_no_change_of_a_word_is_lost(words):
    flat = random_bytes(8 * words)
    before = summed(flat)
    for place in (0, 8 * words // 2, 8 * words - 1):
        for bit in (0x01, 0x80):
            flat[place] ^= bit
            assert summed(flat) != before
            flat[place] ^= bit


@pytest.mark.parametrize(
    ("size", "distance"), [(16, 16), (16, 4096), (48, 320), (4096, 4096), (4096, 16384), (8192, 12288)]
)
def test_pieces_that_changed_places_are_seen(size, distance):
    """Two tensors of a bucket, an offset that is wrong."""
    flat = random_bytes(10 * 4096 + 400)
    swapped = flat.clone()
    swapped[:size], swapped[distance : distance + size] = flat[distance : distance + size], flat[:size]
    assert summed(swapped) != summed(flat)
    assert summed(flat.roll(8)) != summed(flat)


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
