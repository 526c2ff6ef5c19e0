import pytest
import torch

from grpo.refit.errors import RefitError
from grpo.refit.manifest import Manifest, Weight, agreed


def weight(name, *shape, dtype="float32"):
    return Weight(name, shape, dtype)


def plan(weights, bucket_bytes):
    return [[each.name for each in bucket.weights] for bucket in Manifest.of(weights, bucket_bytes).buckets]


def test_buckets_hold_consecutive_tensors_up_to_their_size_or_that_of_the_largest():
    weights = [weight("a", 4), weight("b", 8), weight("c", 4), weight("d", 12), weight("e", 1), weight("f", 1)]
    assert plan(weights, 64) == [["a", "b", "c"], ["d", "e"], ["f"]]
    assert plan(weights, 1) == plan(weights, 48) == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert plan(weights, 1 << 20) == [[each.name for each in weights]]
    assert plan([], 48) == []
    assert plan([weight("empty", 0, 3), weight("a", 4)], 1) == [["empty", "a"]]


def test_tensors_start_at_multiples_of_sixteen_bytes_and_fill_what_they_need():
    (bucket,) = Manifest.of([weight("a", 3, dtype="bfloat16"), weight("b"), weight("c", 2, 3)], 1000).buckets
    assert bucket.offsets == (0, 16, 32, 64)
    flat = torch.zeros(64, dtype=torch.uint8)
    views = bucket.views(flat)
    assert [(tuple(view.shape), view.dtype) for view in views] == [
        ((3,), torch.bfloat16), ((), torch.float32), ((2, 3), torch.float32),
    ]  # fmt: skip
    views[2].fill_(1.0)
    assert flat.nonzero().min() >= 32
    assert flat.view(torch.float32)[8:14].tolist() == [1.0] * 6


def test_sizes_are_those_of_what_travels():
    manifest = Manifest.of([weight("a", 4), weight("b", 5), weight("c", 100)], 64)
    assert (manifest.nbytes, manifest.largest) == (16 + 32 + 400, 400)
    assert list(manifest.weights) == ["a", "b", "c"]
    assert Manifest.of([], 64).largest == 0


def test_a_model_of_thousands_of_tensors_travels_once_in_few_messages():
    """27 layers of 64 small experts: 5,184 matrices, which one by one would be as many messages."""
    experts = [
        weight(f"layers.{layer}.experts.{expert}.{name}", *shape, dtype="bfloat16")
        for layer in range(27)
        for expert in range(64)
        for name, shape in (("gate", (1408, 2048)), ("up", (1408, 2048)), ("down", (2048, 1408)))
    ]
    norms = [weight(f"layers.{layer}.norm", 2048, dtype="bfloat16") for layer in range(27)]
    bytes_of_model = 2 * (27 * 64 * 3 * 1408 * 2048 + 27 * 2048)
    bucket_bytes = 512 << 20
    manifest = Manifest.of([*experts, *norms], bucket_bytes)
    assert manifest.nbytes <= 1.001 * bytes_of_model
    assert len(manifest.buckets) <= 1.1 * bytes_of_model / bucket_bytes + 1 < 70


def test_a_name_that_comes_twice_is_refused():
    with pytest.raises(RefitError, match="exports a twice"):
        Manifest.of([weight("a", 4), weight("a", 4)], 64)


def test_ranks_that_would_export_different_weights_are_named():
    one, same = Manifest.of([weight("a", 4)], 64), Manifest.of([weight("a", 4)], 64)
    assert agreed([one, same]) == one
    with pytest.raises(RefitError, match=r"rank 0 and rank 2 .*a \[4\] float32, a \[5\] float32"):
        agreed([one, same, Manifest.of([weight("a", 5)], 64)])
    two = [weight("a", 4), weight("b", 4)]
    with pytest.raises(RefitError, match="their order"):
        agreed([Manifest.of(two, 64), Manifest.of(two[::-1], 64)])
