import pytest
import torch

from grpo.workers.policy.attention import PackedBounds, causal_attention


def explicit(query, key, value, scaling, lengths):
    """softmax(q k / sqrt d) v in float64 under a block-diagonal causal mask; [1, W, heads, D]."""
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    repeats = query.shape[1] // key.shape[1]
    key, value = (each.double().repeat_interleave(repeats, 1) for each in (key, value))
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    allowed = (owner[:, None] == owner[None]) & torch.ones(len(owner), len(owner)).tril().bool()
    scores = (query.double() @ key.transpose(2, 3) * scaling).masked_fill(~allowed, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("lengths", [[7], [3, 4], [1, 5, 1], [2, 2, 2, 1]])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_packed_sequences_attend_to_themselves_and_the_past(lengths, kv_heads):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 7, heads, 8, generator=generator) for heads in (4, kv_heads, kv_heads))
    bounds = PackedBounds.of(lengths, torch.device("cpu"))
    ours = causal_attention(query, key, value, scaling=0.3, packed=bounds)
    torch.testing.assert_close(ours.double(), explicit(query, key, value, 0.3, lengths), rtol=1e-5, atol=1e-6)
    assert bounds.cumulative.tolist() == [sum(lengths[:end]) for end in range(len(lengths) + 1)]
    assert bounds.cumulative.dtype == torch.int32


def test_rows_attend_to_the_past_alone():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 5, heads, 8, generator=generator) for heads in (4, 2, 2))
    ours = causal_attention(query, key, value, scaling=0.3)
    for row in range(3):
        expected = explicit(query[row : row + 1], key[row : row + 1], value[row : row + 1], 0.3, [5])
        torch.testing.assert_close(ours[row : row + 1].double(), expected, rtol=1e-5, atol=1e-6)
