"""Four real ranks: log-probs by vocabulary, loading, export, state, precision, errors."""

import numpy as np
import pytest
import torch

from grpo.models.loading import load_model
from grpo.models.shipped import materialise, shipped_folder
from grpo.workers.policy.dtensor import DTensorPolicy
from tests.functional.workers.policy import sharded_checks
from tests.support.policy import VOCABULARY, dense_logprobs, random_batch, tiny_config, tiny_model
from tests.support.ranks import run_cells

WORLD = 4
SHAPES = [(1, 3, 7), (7, 4, 11), (12, 6, 4), (0, 4, 11)]  # tokens, width, vocabulary
VOCABULARY_CASES = [
    {"tokens": t, "width": w, "vocabulary": v, "chunk_size": c, "temperature": T, "dtype": d, "with_entropy": e}
    for t, w, v in SHAPES
    for c, T, d, e in (
        (None, 1.0, "float64", True), (1, 0.6, "float64", True), (5, 0.6, "float64", False), (3, 1.0, "float32", True),
    )
]  # fmt: skip
CHUNKED = {"tokens": 40, "width": 3, "vocabulary": 52, "chunk_size": 5, "temperature": 0.9, "with_entropy": True}
WRITTEN = [(1, "float32"), (2, "bfloat16")]
REDUCED = [(1, False, "llama"), (2, False, "qwen3"), (2, True, "llama"), (2, True, "qwen3")]
MEMORY = [(2, False, "float32"), (2, True, "bfloat16"), (1, False, "float32")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return materialise("tiny-llama", tmp_path_factory.mktemp("model"), seed=3)


@pytest.fixture(scope="module")
def answers(folder):
    """Of all checks, each once: starting four processes costs more than any of them."""
    checks = {
        **{f"vocabulary {i}": ("vocabulary_parallel", case) for i, case in enumerate(VOCABULARY_CASES)},
        **{f"chunks {d}": ("vocabulary_parallel", {**CHUNKED, "dtype": d}) for d in ("float32", "bfloat16")},
        **{
            f"memory {t} {s} {p}": (
                "widest_logits",
                {"tensor": t, "sequence_parallel": s, "precision": p, "chunk_size": 3},
            )
            for t, s, p in MEMORY
        },
        **{f"stored {t}": ("exported", {"tensor": t, "folder": str(folder)}) for t in (1, 2)},
        "random": ("exported", {"tensor": 2, "folder": str(shipped_folder("tiny-llama")), "random": True}),
        **{
            f"export {tied}": ("exported", {"tensor": 2, "precision": "bfloat16", "tied": tied})
            for tied in (False, True)
        },
        **{f"written {t} {p}": ("written", {"tensor": t, "precision": p}) for t, p in WRITTEN},
        "resume": ("resumed", {"tensor": 2, "other": 2}),
        "resume elsewhere": ("resumed", {"tensor": 2, "other": 1}),
        "not finite": ("refused_update", {"tensor": 2}),
        "small updates": ("small_updates_in_bfloat16", {"tensor": 2}),
        "untrained": ("untrained", {"tensor": 2}),
        **{
            f"reductions {t} {s} {k}": ("reductions", {"tensor": t, "sequence_parallel": s, "kind": k})
            for t, s, k in REDUCED
        },
    }
    preload = ["tests.functional.workers.policy.sharded_checks"]
    results = run_cells(sharded_checks.run, list(checks.values()), world=WORLD, preload=preload, seconds=60)
    return dict(zip(checks, results, strict=True))


def dense(case):
    generator = torch.Generator().manual_seed(case["tokens"])
    hidden, weight = (
        torch.randn(rows, case["width"], generator=generator, dtype=torch.float64)
        .to(getattr(torch, case["dtype"])).double().requires_grad_()
        for rows in (case["tokens"], case["vocabulary"])
    )  # fmt: skip
    targets = torch.randint(0, case["vocabulary"], (case["tokens"],), generator=generator)
    grads = torch.randn(2, case["tokens"], generator=generator, dtype=torch.float64)
    log_p = (hidden @ weight.T / case["temperature"]).log_softmax(-1)
    values = [log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)]
    used = range(1 + case["with_entropy"])
    gradients = torch.autograd.grad(sum((values[i] * grads[i]).sum() for i in used), [hidden, weight])
    return [each.detach().numpy() for each in values], [each.numpy() for each in gradients]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("index", range(len(VOCABULARY_CASES)))
def test_vocabulary_parallel_logprobs_equal_dense_float64(answers, index):
    case = VOCABULARY_CASES[index]
    values, gradients = dense(case)
    error = 1e-11 if case["dtype"] == "float64" else 2e-5
    of_weight = []
    for ours, ours_gradients, _ in answers[f"vocabulary {index}"]:
        np.testing.assert_allclose(ours[0], values[0], rtol=error, atol=error)
        assert (ours[1] is not None) == case["with_entropy"]
        if case["with_entropy"]:
            np.testing.assert_allclose(ours[1], values[1], rtol=error, atol=error)
        np.testing.assert_allclose(ours_gradients[0], gradients[0], rtol=error, atol=error)
        of_weight.append(ours_gradients[1])
    np.testing.assert_allclose(np.concatenate(of_weight), gradients[1], rtol=error, atol=error)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_rank_holds_its_own_logits_beyond_a_chunk_nor_anyone_elses(answers, dtype):
    for _, _, shapes in answers[f"chunks {dtype}"]:
        assert max(rows for rows, _ in shapes) == CHUNKED["chunk_size"]
        assert {width for _, width in shapes} == {CHUNKED["vocabulary"] // WORLD}


@pytest.mark.parametrize(("tensor", "sequence_parallel", "precision"), MEMORY)
def test_an_update_holds_no_float32_logits_beyond_a_chunk(answers, tensor, sequence_parallel, precision):
    ranks = answers[f"memory {tensor} {sequence_parallel} {precision}"]
    assert max(rows for shapes in ranks for rows, _ in shapes) == 3
    for shapes in ranks:
        assert all(width < VOCABULARY or tensor == 1 for _, width in shapes)


@pytest.mark.parametrize("tensor", [1, 2])
def test_each_rank_reads_its_part_of_the_stored_weights_alone(answers, folder, tensor):
    expected = load_model(folder, dtype=torch.float32)
    dense = dense_logprobs(expected, random_batch()).detach().numpy()
    held_in_all = dict.fromkeys(dict(expected.named_parameters()), 0)
    for weights, counts, held, logprobs in answers[f"stored {tensor}"]:
        assert weights.keys() == held_in_all.keys()
        for name, each in expected.named_parameters():
            assert np.array_equal(weights[name], each.detach().numpy()), name
            assert counts.get(name, 0) == 2 * held[name], name  # policy and reference
            assert held[name] <= -(-each.numel() // 2), name
            held_in_all[name] += held[name]
        for each in logprobs:
            np.testing.assert_allclose(each, dense, atol=2e-5)
    for name, each in expected.named_parameters():
        copies = tensor if each.ndim == 1 else 1  # norms are on every tensor parallel rank
        assert held_in_all[name] == copies * each.numel(), name


def test_random_weights_are_those_of_one_process(answers):
    seed = tiny_config().grpo.seed
    expected = load_model(shipped_folder("tiny-llama"), dtype=torch.float32, random_weights=True, seed=seed)
    for weights, *_ in answers["random"]:
        for name, each in expected.named_parameters():
            assert np.array_equal(weights[name], each.detach().numpy()), name


@pytest.mark.parametrize("tied", [False, True])
def test_exported_weights_are_those_of_one_process(answers, tied):
    policy = DTensorPolicy(tiny_model(tied=tied), tiny_config(policy={"precision": "bfloat16"}))
    expected = {name: each.float().numpy() for name, each in policy.export_weights()}
    assert ("lm_head.weight" in expected) == (not tied)
    batch = random_batch()
    logprobs, mask = policy.logprobs(batch).numpy(), batch.mask.numpy()
    for weights, _, _, ours in answers[f"export {tied}"]:
        assert np.abs(ours[0] - logprobs)[mask].mean() < 0.03  # bfloat16, whose sums are made in another order
        assert list(weights) == list(expected)
        for name, each in expected.items():
            assert np.array_equal(weights[name], each), name


@pytest.mark.parametrize(("tensor", "precision"), WRITTEN)
def test_buckets_hold_what_every_rank_exports_bit_for_bit(answers, tensor, precision):
    """37 rows of the vocabulary do not divide over the ranks; matrices are cut along both dimensions."""
    of_ranks = answers[f"written {tensor} {precision}"]
    names = [name for name, _ in tiny_model().named_parameters()]
    for found, exported, manifest, _ in of_ranks:
        assert list(found) == list(exported) == names
        assert len(manifest.buckets) > 5
        for name in names:
            assert np.array_equal(found[name], exported[name]), name
            assert np.array_equal(found[name], of_ranks[0][0][name]), name


@pytest.mark.parametrize(("tensor", "precision"), WRITTEN)
def test_no_rank_holds_more_of_the_weights_than_buckets_under_way(answers, tensor, precision):
    """Beside the two that travel: parts of two that do not lie in them as they are exchanged."""
    for _, _, manifest, peak in answers[f"written {tensor} {precision}"]:
        assert 0 < peak <= 3 * manifest.largest
        assert peak + 2 * manifest.largest < manifest.nbytes / 2


@pytest.mark.parametrize("where", ["resume", "resume elsewhere"])
def test_a_resumed_policy_goes_on_as_the_one_that_was_saved(answers, where):
    shares = [share for share, *_ in answers[where]]
    assert sum(shares) == pytest.approx(1)
    assert max(shares) < 0.4, "no rank writes, or holds, the whole model"
    for _, same, metrics, resumed, furthest in answers[where]:
        assert same
        if where == "resume":
            assert resumed == metrics
            assert furthest == 0.0
        else:
            assert furthest < 1e-6
            for ours, theirs in zip(resumed, metrics, strict=True):
                assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)


def test_a_gradient_that_is_not_finite_is_an_error_on_every_rank_and_changes_nothing(answers):
    expected = DTensorPolicy(tiny_model(), tiny_config()).train(random_batch()).metrics
    for message, same, metrics in answers["not finite"]:
        assert message.startswith("update 1: the gradient norm is nan over 21 trained tokens")
        assert same
        assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)  # nothing was left over


def test_bfloat16_masters_keep_updates_that_bfloat16_would_swallow(answers):
    for moved, exported_same, is_bfloat16, metrics in answers["small updates"]:
        assert is_bfloat16
        assert exported_same
        assert moved["masters"] == pytest.approx(3e-6, rel=0.1)
        assert metrics == answers["small updates"][0][3]


@pytest.mark.parametrize(("tensor", "sequence_parallel", "kind"), REDUCED)
def test_gradients_of_bfloat16_passes_are_summed_over_ranks_and_micro_batches_in_float32(
    answers, tensor, sequence_parallel, kind
):
    """A sum over ranks in bfloat16 would have no element finer than that; one over micro-batches errs by 1e-3.

    Weights of norms, which tensor parallel ranks use for different tokens, are summed over those first.
    """
    for passed, summed, used, finer, error in answers[f"reductions {tensor} {sequence_parallel} {kind}"]:
        assert passed == {torch.bfloat16}
        assert summed == {torch.float32}
        assert used > 0.5
        assert finer > 0.3
        assert error < 1e-6


def test_a_batch_without_trained_tokens_makes_no_update(answers):
    assert answers["untrained"] == [(0, 0.0, 0)] * WORLD
