"""Tensors as bytes, and as buckets of them."""

import pytest
import torch

from grpo.workers.groups.packed import PackedTensor, buckets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5), (7,), (2, 3, 4), (1,), ()])
def test_a_packed_weight_comes_back_bit_for_bit(dtype, shape):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    packed = PackedTensor.pack("a.weight", tensor)
    packed.data.flags.writeable = False
    name, unpacked = packed.unpack()
    assert name == "a.weight"
    assert unpacked.dtype == dtype
    assert torch.equal(unpacked, tensor)


def test_a_transposed_weight_is_packed_in_its_own_order():
    tensor = torch.arange(6.0).view(2, 3).t()
    assert torch.equal(PackedTensor.pack("a", tensor).unpack()[1], tensor)


def test_packing_copies():
    tensor = torch.zeros(3)
    packed = PackedTensor.pack("a", tensor)
    tensor.fill_(1.0)
    assert packed.unpack()[1].tolist() == [0.0] * 3


@pytest.mark.parametrize(("size", "expected"), [
    (1, ["a", "b", "c", "d"]), (20, ["ab", "c", "d"]), (24, ["ab", "cd"]), (25, ["abc", "d"]), (10**6, ["abcd"]),
])  # fmt: skip
def test_buckets_keep_the_order_and_end_where_they_are_full(size, expected):
    tensors = [(name, torch.zeros(count)) for name, count in (("a", 2), ("b", 4), ("c", 5), ("d", 1))]
    assert ["".join(name for name, _ in bucket) for bucket in buckets(tensors, size)] == expected


def test_no_tensors_no_bucket():
    assert list(buckets([], 8)) == []


def test_buckets_take_no_more_than_they_need():
    taken = []

    def tensors():
        for number in range(5):
            taken.append(number)
            yield str(number), torch.zeros(2)

    next(buckets(tensors(), 16))
    assert taken == [0, 1]
