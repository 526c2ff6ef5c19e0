import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grpo.workers.vocab_parallel import vocab_parallel_logprobs


def dense(hidden, weight, targets, temperature):
    """Written out, in the dtype given."""
    log_p = (hidden @ weight.T / temperature).log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def random_inputs(tokens=7, vocabulary=11, size=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, vocabulary, (tokens,), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk_size", [1, 3, 7, None])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_values_and_gradients_are_those_of_the_formula(temperature, chunk_size, with_entropy):
    hidden, weight, targets = random_inputs()
    scale = torch.linspace(-1, 1, len(targets), dtype=torch.float64)
    expected, entropy = dense(hidden, weight, targets, temperature)
    (expected @ scale + (entropy @ scale.flip(0) if with_entropy else 0)).backward()
    wanted = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    ours = vocab_parallel_logprobs(
        hidden, weight, targets, temperature=temperature, chunk_size=chunk_size, with_entropy=with_entropy
    )
    torch.testing.assert_close(ours.logprobs, expected)
    assert (ours.entropy is not None) == with_entropy
    total = ours.logprobs @ scale
    if with_entropy:
        torch.testing.assert_close(ours.entropy, entropy)
        total = total + ours.entropy @ scale.flip(0)
    total.backward()
    torch.testing.assert_close((hidden.grad, weight.grad), wanted)


def test_values_of_the_specification():
    hidden, weight = torch.tensor([[1.0], [1.0]]), torch.tensor([[2.0], [0.0]])
    values = vocab_parallel_logprobs(hidden, weight, torch.tensor([0, 1]), temperature=0.6)
    torch.testing.assert_close(values.logprobs, torch.tensor([-0.035052, -3.368386]), atol=1e-6, rtol=0)
    values = vocab_parallel_logprobs(hidden, weight, torch.tensor([0, 1]), with_entropy=True)
    torch.testing.assert_close(values.entropy, torch.tensor([0.365334, 0.365334]), atol=1e-6, rtol=0)


def test_large_logits_do_not_overflow():
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[500.0], [-500.0], [499.0]])
    values = vocab_parallel_logprobs(hidden, weight, torch.tensor([2]), with_entropy=True)
    assert values.logprobs.item() == pytest.approx(-1.3132617)
    assert torch.isfinite(values.entropy).all()


def test_no_token_gives_gradients_of_zero():
    hidden, weight, targets = random_inputs(tokens=3)
    values = vocab_parallel_logprobs(hidden[:0], weight, targets[:0], with_entropy=True)
    (values.logprobs.sum() + values.entropy.sum()).backward()
    assert hidden.grad.eq(0).all()
    assert weight.grad.eq(0).all()


def test_bfloat16_results_and_weight_gradients_are_made_in_float32():
    hidden, weight, targets = random_inputs(dtype=torch.bfloat16)
    values = vocab_parallel_logprobs(hidden, weight, targets)
    assert values.logprobs.dtype == torch.float32
    expected, _ = dense(hidden.double(), weight.double(), targets, 1.0)
    torch.testing.assert_close(values.logprobs.double(), expected, rtol=0.02, atol=0.05)
    values.logprobs.sum().backward()
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.bfloat16)


class Widest(TorchDispatchMode):
    """The most rows that any result as wide as the vocabulary had."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary, self.rows = vocabulary, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in [] if func.is_view else tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.shape[1:] == (self.vocabulary,):
                self.rows = max(self.rows, each.shape[0])
        return result


@pytest.mark.parametrize("with_entropy", [True, False])
def test_logits_of_one_chunk_exist_at_a_time(with_entropy):
    hidden, weight, targets = random_inputs(tokens=12, vocabulary=31, size=3)
    with Widest(31) as seen:
        values = vocab_parallel_logprobs(hidden, weight, targets, chunk_size=4, with_entropy=with_entropy)
        (values.logprobs.sum() + (values.entropy.sum() if with_entropy else 0)).backward()
    assert seen.rows == 4
