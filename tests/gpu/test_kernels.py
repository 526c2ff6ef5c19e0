"""Each kernel, torch's among them, forward and backward, against the definition in float64 of the same inputs."""

import pytest
import torch

from grpo.kernels.logits import logit_gradients, logit_statistics
from grpo.kernels.norm import rms_norm
from grpo.kernels.rotary import rotary
from grpo.kernels.swiglu import swiglu, swiglu_joined
from grpo.workers.policy.attention import PackedBounds, causal_attention

# Of one value. Triton's interpreter cuts off what bfloat16 does not hold, where a GPU rounds to the nearest.
ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 2.0**-8 if torch.cuda.is_available() else 2.0**-7}
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")


def random(*shape, dtype, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(device)


def assert_near(ours, theirs, dtype, *, times=1.0, least=0.01):
    """Within `times` roundings of `dtype`, relative to each value or to the share `least` of the greatest."""
    theirs = theirs.to(ours.device)
    bound = times * ROUNDING[dtype] * theirs.abs().clamp_min(least * theirs.abs().max())
    error = (ours.double() - theirs).abs()
    assert ours.isfinite().all()
    assert (error <= bound).all(), (error / bound).max()


def both(operation, inputs, gradients, **kwargs):
    """Results and gradients of an operation, as given and in float64."""
    found = []
    for wide in (False, True):
        leaves = [(each.double() if wide else each).detach().requires_grad_() for each in inputs]
        results = operation(*leaves, **kwargs)
        results = results if isinstance(results, tuple) else (results,)
        given = [each.double() if wide else each for each in gradients]
        found.append((results, torch.autograd.grad(results, leaves, given)))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 24), (1, 37, 128), (2, 9, 2048), (1, 6, 3000), (1, 2, 8192)])
def test_rms_norm(kernels, dtype, shape):
    hidden, weight = random(*shape, dtype=dtype, device=kernels), random(shape[-1], dtype=dtype, seed=1, device=kernels)
    (ours, ours_back), (theirs, theirs_back) = both(
        lambda x, w: rms_norm(x, w, 1e-5), [hidden, weight], [random(*shape, dtype=dtype, seed=2, device=kernels)]
    )
    assert ours[0].dtype == dtype
    assert_near(ours[0], theirs[0], dtype)
    assert_near(ours_back[0], theirs_back[0], dtype, times=2)
    assert_near(ours_back[1], theirs_back[1], dtype, times=2)


def angles(outer, inner, half, dtype, device):
    turn = torch.outer(torch.arange(outer * inner) * 7.3, 0.01 ** (torch.arange(half) / half)).view(outer, inner, half)
    return turn.cos().to(dtype).to(device), turn.sin().to(dtype).to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [((1, 11), (4, 2), 8, (1, 11)), ((3, 5), (7, 1), 128, (1, 5)), ((6, 2), (5, 5), 64, (6, 1))]
)
def test_rotary(kernels, dtype, shape):
    tokens, heads, width, of_angles = shape
    cosine, sine = angles(*of_angles, width // 2 + 3, dtype, kernels)
    query, key = (
        random(*tokens, count, width + 6, dtype=dtype, seed=count, device=kernels)[..., :width] for count in heads
    )
    given = [random(*each.shape, dtype=dtype, seed=9, device=kernels) for each in (query, key)]
    (ours, ours_back), (theirs, theirs_back) = both(
        lambda q, k: rotary(q, k, cosine.to(q.dtype), sine.to(q.dtype)), [query, key], given
    )
    for one, other in zip((*ours, *ours_back), (*theirs, *theirs_back), strict=True):
        assert_near(one, other, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 5, 40), (1, 3, 2048), (4, 1, 5000)])
def test_swiglu(kernels, dtype, shape):
    gate, up, given = (random(*shape, dtype=dtype, seed=seed, device=kernels) * 3 for seed in range(3))
    for operation, inputs in ((swiglu, [gate, up]), (swiglu_joined, [torch.cat([gate, up], -1)])):
        (ours, ours_back), (theirs, theirs_back) = both(operation, inputs, [given])
        assert_near(ours[0], theirs[0], dtype)
        for one, other in zip(ours_back, theirs_back, strict=True):
            assert_near(one, other, dtype)


@pytest.mark.parametrize("shape", [(5, 37), (3, 4096), (4, 9001)])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 4.0])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_statistics_of_logits(kernels, shape, temperature, with_entropy):
    logits = random(*shape, dtype=torch.float32, device=kernels) * 9 - 30
    targets = torch.arange(shape[0], device=kernels) * 5 - 5  # the first is another rank's
    ours, rest = logit_statistics(logits.clone(), targets, temperature=temperature, with_entropy=with_entropy)
    theirs, _ = logit_statistics(logits.double(), targets, temperature=temperature, with_entropy=with_entropy)
    assert torch.equal(rest, logits)
    assert ours.logprobs[0] == -torch.inf
    assert_near(ours.logprobs[1:], theirs.logprobs[1:], torch.float32)
    assert_near(ours.normaliser, theirs.normaliser, torch.float32)
    assert (ours.entropy is not None) == with_entropy
    if with_entropy:
        torch.testing.assert_close(ours.entropy.double(), theirs.entropy, rtol=3e-6, atol=3e-6)  # near 0 a difference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("used", ["logprobs", "entropy", "both", "neither"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradients_of_logits(kernels, dtype, used, temperature):
    rows, width = 5, 5000
    logits = random(rows, width, dtype=torch.float32, device=kernels) * 3
    if used == "logprobs":
        logits[2, 7] = 40.0  # p rounds to 1
    targets = torch.tensor([4999, -3, 7, 0, 5000], device=kernels)
    grads = {
        "grad_logprobs": random(rows, dtype=torch.float32, seed=3, device=kernels)
        if used in {"logprobs", "both"}
        else None,
        "grad_entropy": random(rows, dtype=torch.float32, seed=4, device=kernels)
        if used in {"entropy", "both"}
        else None,
    }
    whole, _ = logit_statistics(
        logits.double(), targets.clamp(0, width - 1), temperature=temperature, with_entropy=True
    )
    narrow = type(whole)(*(each.float() for each in whole))
    settings = {"temperature": temperature, "normalised": False}
    ours = logit_gradients(logits.clone(), narrow, targets, **grads, **settings, dtype=dtype)
    wide = {name: None if each is None else each.double() for name, each in grads.items()}
    theirs = logit_gradients(logits.double(), whole, targets, **wide, **settings, dtype=torch.float64)
    assert ours.dtype == dtype
    for row in range(rows):
        assert_near(ours[row], theirs[row], dtype, times=4 if dtype == torch.float32 else 1.01)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: attention of packed rows is torch's kernel")
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 4, 64), (8, 2, 128), (6, 1, 64)])
def test_packed_attention(heads, kv_heads, width):
    lengths = [5, 130, 1, 64]
    tokens = sum(lengths)
    mixed = random(1, tokens, heads + 2 * kv_heads, width, dtype=torch.bfloat16, device="cuda")
    bounds = PackedBounds.of(lengths, torch.device("cuda"))

    def attended(mixed):
        query, key, value = mixed.split([heads, kv_heads, kv_heads], 2)
        return causal_attention(query, key, value, scaling=0.1, packed=bounds)

    given = random(1, tokens, heads, width, dtype=torch.bfloat16, seed=1, device="cuda")
    (ours, ours_back), (theirs, theirs_back) = both(attended, [mixed], [given])
    assert_near(ours[0], theirs[0], torch.bfloat16, times=8, least=0.1)  # rounded probabilities are summed
    error = (ours_back[0].double() - theirs_back[0]).norm() / theirs_back[0].norm()
    assert error < 0.01
