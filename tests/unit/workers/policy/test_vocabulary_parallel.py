"""A group of one; several ranks in tests/functional/workers/policy/test_sharded.py."""

import pytest
import torch

from grpo.workers.policy.token_logprobs import token_logprobs
from grpo.workers.policy.vocabulary_parallel import vocabulary_parallel_logprobs
from tests.support.pretended_ranks import lone_rank


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_one_rank_has_what_token_logprobs_gives(chunk_size, with_entropy):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 3, generator=generator).requires_grad_() for rows in (7, 11))
    targets = torch.randint(0, 11, (7,), generator=generator)
    options = {"temperature": 0.7, "chunk_size": chunk_size, "with_entropy": with_entropy}
    expected = token_logprobs(hidden, weight, targets, **options)
    with lone_rank() as group:
        ours = vocabulary_parallel_logprobs(hidden, weight, targets, first_row=0, group=group, **options)
        results = []
        for values in (ours, expected):
            used = [each for each in values if each is not None]
            gradients = torch.autograd.grad(sum((each * each).sum() for each in used), [hidden, weight])
            results.append([*used, *gradients])
    assert len(results[0]) == 3 + with_entropy
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
