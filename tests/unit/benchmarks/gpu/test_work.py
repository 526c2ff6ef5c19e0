import pytest

from benchmarks.gpu.work import batch_of, packs_of, pass_flops, random_batch, update_flops
from grpo.models.dimensions import Dimensions

DIMENSIONS = Dimensions(layers=3, hidden=8, intermediate=20, heads=4, kv_heads=2, head_dim=2, vocab=50)


@pytest.mark.parametrize(("cap", "packs"), [(64, 3), (4096, 5), (8192, 2)])
def test_the_packs_are_nearly_full(cap, packs):
    batch = random_batch(cap, packs, 100)
    seen = [each - 1 for each in batch.lengths.tolist()]
    assert sum(seen) == cap * packs
    found = packs_of(batch, cap, "cpu")
    assert packs <= len(found) <= packs + 1
    assert all(sum(each.lengths) == each.input_ids.numel() <= cap for each in found)


def test_a_pack_holds_its_sequences_end_to_end():
    batch = batch_of([7, 13], 100, seed=1)
    (pack,) = packs_of(batch, 64, "cpu")
    order = [0, 1] if pack.lengths == [6, 12] else [1, 0]
    rows = [batch.tokens.split([7, 13])[row] for row in order]
    assert pack.input_ids[0].tolist() == [token for row in rows for token in row[:-1].tolist()]
    assert pack.bounds.tolist() == [0, pack.lengths[0], 18]
    predicted = [pack.input_ids[0].tolist()[place] for place in pack.predictors.tolist()]
    first = {0: 1, 1: 2}  # the first sixth of each is its prompt, one token at least
    expected = [
        (row[place - 1], row[place])
        for at, row in zip(order, rows, strict=True)
        for place in range(first[at], len(row))
    ]
    assert list(zip(predicted, pack.targets.tolist(), strict=True)) == [(int(a), int(b)) for a, b in expected]
    assert pack.advantages.numel() == pack.old_logprobs.numel() == pack.targets.numel()


def test_flops_counted_product_by_product():
    batch = batch_of([5, 12], 50)
    total = 0
    for seen in (4, 11):
        # query, key, value, output; gate, up, down; scores and values over half of the square, every head
        weights = 8 * 8 + 8 * 4 + 8 * 4 + 8 * 8 + 3 * 8 * 20
        total += 3 * (2 * seen * weights + 2 * 4 * 2 * seen * seen * 2 / 2)
    total += 2 * int(batch.mask.sum()) * 8 * 50
    assert pass_flops(DIMENSIONS, batch).total == total
    assert update_flops(DIMENSIONS, batch).total == 3 * total
