"""Log-probs over several ranks, each with some rows of the output weight, against the formula in one piece."""

import pytest
import torch
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grpo.workers.vocab_parallel import vocab_parallel_logprobs
from tests.support.ranks import run_cells

TOKENS, VOCABULARY, SIZE = 9, 31, 5


class Widest(TorchDispatchMode):
    """The most rows of any result that is as wide as this rank's part of the vocabulary."""

    def __init__(self, width):
        super().__init__()
        self.width, self.rows = width, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in [] if func.is_view else tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.shape[1:] == (self.width,):
                self.rows = max(self.rows, each.shape[0])
        return result


def inputs():
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(TOKENS, SIZE, generator=generator)
    weight = torch.randn(VOCABULARY, SIZE, generator=generator)
    return hidden, weight, torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)


def on_rank(cell):
    hidden, weight, targets = inputs()
    share = -(-VOCABULARY // dist.get_world_size())
    first = dist.get_rank() * share
    own = weight[first : first + share].clone().requires_grad_()
    hidden.requires_grad_()
    with Widest(len(own)) as seen:
        values = vocab_parallel_logprobs(
            hidden, own, targets, first_token=first, group=dist.group.WORLD, temperature=0.7, chunk_size=cell,
            with_entropy=True,
        )  # fmt: skip
        (values.logprobs.sum() + 0.5 * values.entropy.square().sum()).backward()
    dist.all_reduce(hidden.grad)
    return values.logprobs.detach(), values.entropy.detach(), hidden.grad, own.grad, seen.rows


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_equal_the_formula(world):
    hidden, weight, targets = (each.double() if each.is_floating_point() else each for each in inputs())
    hidden.requires_grad_()
    weight.requires_grad_()
    log_p = (hidden @ weight.T / 0.7).log_softmax(-1)
    logprobs, entropy = log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    (logprobs.sum() + 0.5 * entropy.square().sum()).backward()
    chunks = [2, 4, None]
    preload = ["grpo.workers.vocab_parallel"]
    for chunk, results in zip(
        chunks, run_cells(on_rank, chunks, world=world, preload=preload, seconds=20), strict=True
    ):
        for ours in results:
            torch.testing.assert_close(ours[0].double(), logprobs.detach(), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(ours[1].double(), entropy.detach(), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(ours[2].double(), hidden.grad, rtol=1e-4, atol=1e-5)
            assert ours[4] == (chunk or TOKENS)
            assert results[0][0].equal(ours[0])
        whole = torch.cat([ours[3] for ours in results])
        torch.testing.assert_close(whole.double(), weight.grad, rtol=1e-4, atol=1e-5)
