import pytest

from grpo.data.permutation import permutation

MASK = (1 << 64) - 1


def philox_4x64(key: tuple[int, int], count: int) -> list[int]:
    """Philox 4x64 with 10 rounds, from the paper (Salmon et al. 2011); the counter starts at 1."""
    words: list[int] = []
    block = 1
    while len(words) < count:
        c, (k0, k1) = [block, 0, 0, 0], key
        for _ in range(10):
            p0, p1 = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [(p1 >> 64) ^ c[1] ^ k0, p1 & MASK, (p0 >> 64) ^ c[3] ^ k1, p0 & MASK]
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
        words += c
        block += 1
    return words[:count]


@pytest.mark.parametrize(("size", "seed", "stream"), [(1, 0, 0), (7, 42, 0), (7, 42, 1), (100, 2**63, 12345)])
def test_is_the_order_of_philox_words(size, seed, stream):
    words = philox_4x64((seed, stream), size)
    assert permutation(size, seed=seed, stream=stream).tolist() == sorted(range(size), key=words.__getitem__)


def test_seed_and_stream_are_not_interchangeable():
    assert permutation(50, seed=1, stream=2).tolist() != permutation(50, seed=2, stream=1).tolist()


def test_nothing_to_permute():
    assert permutation(0, seed=3, stream=4).tolist() == []
