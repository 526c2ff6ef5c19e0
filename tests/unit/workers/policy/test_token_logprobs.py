import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grpo.workers.policy.token_logprobs import default_chunk_size, token_logprobs

SHAPES = [(1, 3, 5), (7, 4, 11), (12, 6, 3)]  # tokens, width, vocabulary


def case(shape, dtype=torch.float32, seed=0):
    tokens, width, vocabulary = shape
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    grads = torch.randn(2, tokens, generator=generator, dtype=torch.float64)
    return hidden, weight, targets, grads


def dense(hidden, weight, targets, temperature):
    """The textbook in float64."""
    log_p = (hidden.double() @ weight.double().T / temperature).log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def gradients(values, leaves, grads):
    used = [(value, grad) for value, grad in zip(values, grads, strict=True) if value is not None]
    total = sum((value * grad.to(value.dtype)).sum() for value, grad in used)
    return torch.autograd.grad(total, leaves)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk_size", [1, 2, 5, 7, 100, None])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_values_and_gradients_equal_dense_float64(shape, chunk_size, temperature, with_entropy):
    hidden, weight, targets, grads = case(shape, torch.float64)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    result = token_logprobs(
        hidden, weight, targets, temperature=temperature, chunk_size=chunk_size, with_entropy=with_entropy
    )
    assert (result.entropy is not None) == with_entropy
    expected = dense(hidden, weight, targets, temperature)
    expected = expected if with_entropy else (expected[0], None)
    for ours, theirs in zip(result, expected, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(gradients(result, leaves, grads), gradients(expected, leaves, grads), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("chunk_size", [3, None])
def test_entropy_alone_has_its_gradient(chunk_size):
    hidden, weight, targets, _ = case((7, 4, 11), torch.float64)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    ours = token_logprobs(hidden, weight, targets, chunk_size=chunk_size, with_entropy=True).entropy
    theirs = dense(hidden, weight, targets, 1.0)[1]
    for one, other in zip(
        torch.autograd.grad(ours.sum(), leaves), torch.autograd.grad(theirs.sum(), leaves), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_temperature_divides_logits_not_log_probs():
    hidden, weight = torch.eye(2), torch.tensor([[2.0, 2.0], [0.0, 0.0]])  # logits [2, 0] for both tokens
    result = token_logprobs(hidden, weight, torch.tensor([0, 1]), temperature=0.6)
    torch.testing.assert_close(result.logprobs, torch.tensor([-0.035052, -3.368386]), rtol=0, atol=1e-6)


def test_entropy_of_two_logits():
    hidden, weight = torch.eye(2)[:1], torch.tensor([[2.0, 2.0], [0.0, 0.0]])
    result = token_logprobs(hidden, weight, torch.tensor([0]), with_entropy=True)
    torch.testing.assert_close(result.entropy, torch.tensor([0.365334]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("chunk_size", [3, None])
def test_log_softmax_of_bfloat16_logits_is_float32(chunk_size):
    hidden, weight, targets, _ = case((12, 6, 300), torch.bfloat16)
    result = token_logprobs(hidden, weight, targets, chunk_size=chunk_size, with_entropy=True)
    logits = (hidden @ weight.T).double()  # rounded to bfloat16, as the engine's are
    expected = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    assert result.logprobs.dtype == result.entropy.dtype == torch.float32
    torch.testing.assert_close(result.logprobs.double(), expected, rtol=1e-6, atol=1e-6)


def test_gradient_of_a_float32_weight_under_bfloat16_compute_is_accumulated_in_float32():
    # 512 equal contributions: a bfloat16 running sum stands still once one of them is below half its spacing.
    tokens = 512
    hidden = torch.ones(tokens, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, requires_grad=True)
    result = token_logprobs(hidden, weight, torch.zeros(tokens, dtype=torch.int64), chunk_size=1)
    result.logprobs.sum().backward()
    assert weight.grad.dtype == torch.float32
    torch.testing.assert_close(weight.grad, torch.tensor([[tokens / 2], [-tokens / 2]]))


class Allocations(TorchDispatchMode):
    """Element counts of everything that operations return, float32 or wider."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.dtype in {torch.float32, torch.float64}:
                self.sizes.append(tuple(each.shape))
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_no_float32_logits_beyond_a_chunk_exist_forward_or_backward(dtype, with_entropy):
    tokens, width, vocabulary, chunk = 32, 3, 50, 5
    hidden, weight, targets, grads = case((tokens, width, vocabulary), dtype)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    with Allocations() as seen:
        gradients(token_logprobs(hidden, weight, targets, chunk_size=chunk, with_entropy=with_entropy), leaves, grads)
    with_vocabulary = [shape for shape in seen.sizes if vocabulary in shape]
    assert max(shape[0] for shape in with_vocabulary if shape[-1] == vocabulary) == chunk
    assert all(tokens not in shape for shape in with_vocabulary)


def test_a_call_within_one_chunk_makes_its_logits_once():
    hidden, weight, targets, grads = case((7, 4, 11))
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]

    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func.__name__.startswith("mm") or func.__name__.startswith("addmm")
            return func(*args, **(kwargs or {}))

    with Products() as products:
        gradients(token_logprobs(hidden, weight, targets, chunk_size=7, with_entropy=True), leaves, grads)
    assert products.count == 3  # logits, gradient of hidden, gradient of weight
    with Products() as products:
        gradients(token_logprobs(hidden, weight, targets, chunk_size=4, with_entropy=True), leaves, grads)
    assert products.count == 8  # two chunks, logits made again


def test_default_chunk_holds_about_32_mib_of_float32_on_a_cpu_and_512_on_a_gpu():
    for device, expected in (("cpu", 32 << 20), ("cuda", 512 << 20)):
        assert default_chunk_size(128_256, torch.device(device)) * 128_256 * 4 == pytest.approx(expected, rel=0.03)
        assert default_chunk_size(1 << 30, torch.device(device)) == 1


def test_no_tokens():
    hidden, weight, targets, grads = case((0, 4, 11))
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    result = token_logprobs(hidden, weight, targets, with_entropy=True)
    assert result.logprobs.shape == result.entropy.shape == (0,)
    assert all((each == 0).all() for each in gradients(result, leaves, grads))


@pytest.mark.parametrize("chunk_size", [1, None])
def test_the_gradient_of_a_confident_token_survives_bfloat16(chunk_size):
    # p = 0.9991 rounds to 1 in bfloat16; the token's gradient is (1 - p) times its weight, and the others' weights.
    hidden = torch.tensor([[7.0], [7.0]], dtype=torch.bfloat16)
    weight = torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16, requires_grad=True)
    result = token_logprobs(hidden, weight, torch.zeros(2, dtype=torch.int64), chunk_size=chunk_size)
    result.logprobs.sum().backward()
    others = 1 / (1 + math.exp(7.0))
    torch.testing.assert_close(weight.grad[:, 0].float(), 14 * torch.tensor([others, -others]), rtol=1e-2, atol=0)
