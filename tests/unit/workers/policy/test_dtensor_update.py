"""Updates of a policy in one process are those of dense code in float64."""

import math

import pytest
import torch

from tests.support.dense_policy import dense_loss, gradients_of_train, make, relative_error
from tests.support.policy import random_batch, tiny_model, whole_state
from tests.support.policy_state import assert_same

CUTS = {
    "one by one": {"train_micro_batch_size": 1},
    "two": {"train_micro_batch_size": 2},
    "four": {"train_micro_batch_size": 4},
    "all": {"train_micro_batch_size": 64},
    "dynamic": {"dynamic_batching": {"enabled": True, "train_mb_tokens": 24, "sequence_length_round": 4}},
    "packed": {"sequence_packing": {"enabled": True, "train_mb_tokens": 20}},
    "packed in one": {"sequence_packing": {"enabled": True, "train_mb_tokens": 99}},
    "balanced": {"sequence_packing": {"enabled": True, "train_mb_tokens": 20, "algorithm": "balanced"}},
    "chunks of two": {"train_micro_batch_size": 64, "logprob_chunk_size": 2},
    "activation checkpointing": {"train_micro_batch_size": 2, "dtensor_cfg": {"activation_checkpointing": True}},
}
FLOAT32_ERROR = 4e-6  # of the whole gradient, against float64
AGGREGATIONS = ["token_mean", "seq_mean_token_sum"]


@pytest.mark.parametrize(
    ("cut", "aggregation"), [*((cut, "seq_mean_token_mean") for cut in CUTS), *(("two", kind) for kind in AGGREGATIONS)]
)
def test_update_is_the_same_however_the_batch_is_cut(cut, aggregation):
    batch = random_batch(untrained=(2,))
    loss_fn = {"aggregation": aggregation, "entropy_coef": 0.1, "reference_policy_kl_penalty": 0.3}
    expected_model = tiny_model(tied=True).double()
    loss = dense_loss(expected_model, batch, aggregation=aggregation, entropy_coef=0.1, kl=0.3)
    loss.backward()
    expected = {name: each.grad for name, each in expected_model.named_parameters()}
    policy = make(
        tiny_model(tied=True), policy={"max_grad_norm": None, **CUTS[cut]}, loss_fn=loss_fn, reference=tiny_model()
    )
    result, ours = gradients_of_train(policy, batch)
    assert relative_error(ours, expected) < FLOAT32_ERROR
    norm = float(torch.stack([each.norm() for each in expected.values()]).norm())
    assert result.metrics["loss"] == pytest.approx(loss.item(), rel=2e-6)
    assert result.metrics["grad_norm"] == pytest.approx(norm, rel=2e-6)
    assert result.trained_tokens == int(batch.mask.sum()) == 19


@pytest.mark.parametrize("cut", CUTS)
def test_metrics_are_the_same_however_the_batch_is_cut(cut):
    batch = random_batch()
    whole = make(tiny_model(), policy={"train_micro_batch_size": 64}).train(batch).metrics
    ours = make(tiny_model(), policy=CUTS[cut]).train(batch).metrics
    assert ours.keys() == whole.keys()
    for name in whole.keys() - {"padding_efficiency"}:
        assert ours[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_of_every_architecture(kind, tied):
    batch = random_batch()
    expected_model = tiny_model(kind, tied=tied).double()
    dense_loss(expected_model, batch).backward()
    expected = {name: each.grad for name, each in expected_model.named_parameters()}
    _, ours = gradients_of_train(make(tiny_model(kind, tied=tied), policy={"max_grad_norm": None}), batch)
    assert ours.keys() == expected.keys()
    assert relative_error(ours, expected) < FLOAT32_ERROR


def test_repeating_every_row_leaves_the_update_unchanged():
    batch = random_batch()
    once, first = gradients_of_train(make(tiny_model()), batch)
    twice, second = gradients_of_train(make(tiny_model()), batch.select([0, 1, 2, 3, 4] * 2))
    assert twice.metrics["loss"] == pytest.approx(once.metrics["loss"], rel=1e-5)
    assert relative_error(second, {name: each.double() for name, each in first.items()}) < 1e-5


def test_a_sequence_without_trained_tokens_changes_nothing():
    batch = random_batch(untrained=(3,))
    one, first = gradients_of_train(make(tiny_model()), batch)
    other, second = gradients_of_train(make(tiny_model()), batch.select([0, 1, 2, 4]))
    assert one.metrics == other.metrics
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_batch_without_trained_tokens_makes_no_update():
    batch = random_batch()
    batch = batch.with_values(mask=torch.zeros_like(batch.mask))
    policy = make(tiny_model(), policy={"scheduler": {"warmup_steps": 10}})
    policy.train(random_batch())
    before = whole_state(policy)
    result = policy.train(batch)
    assert result.trained_tokens == 0
    assert result.metrics["loss"] == result.metrics["grad_norm"] == 0.0
    assert_same(whole_state(policy), before)
    assert (policy.logprobs(batch) == 0).all()


def test_on_policy_ratio_needs_no_old_logprobs():
    batch = random_batch()
    given = make(tiny_model())
    batch = batch.with_values(old_logprobs=given.logprobs(batch))
    result, expected = gradients_of_train(given, batch)
    on_policy = make(tiny_model(), loss_fn={"force_on_policy_ratio": True})
    other, ours = gradients_of_train(on_policy, batch.with_values(old_logprobs=None))
    assert relative_error(ours, {name: each.double() for name, each in expected.items()}) < 1e-5
    assert other.metrics["probs_ratio"] == 1.0
    assert other.metrics["gen_kl_error"] == pytest.approx(result.metrics["gen_kl_error"], rel=1e-4)


def test_clipping_keeps_the_direction_and_reports_the_norm_before_it():
    batch = random_batch()
    free, first = gradients_of_train(make(tiny_model(), policy={"max_grad_norm": None}), batch)
    bound = free.metrics["grad_norm"] / 4
    clipped, second = gradients_of_train(make(tiny_model(), policy={"max_grad_norm": bound}), batch)
    loose, third = gradients_of_train(make(tiny_model(), policy={"max_grad_norm": bound * 8}), batch)
    assert clipped.metrics["grad_norm"] == loose.metrics["grad_norm"] == free.metrics["grad_norm"]
    for name in first:
        torch.testing.assert_close(second[name], first[name] / 4, rtol=1e-4, atol=0)
        assert torch.equal(third[name], first[name])


def test_a_gradient_that_is_not_finite_is_an_error_and_changes_nothing():
    policy, batch = make(tiny_model()), random_batch()
    policy.train(batch)
    before = whole_state(policy)
    bad = batch.advantages.clone()
    bad[1] = torch.nan
    with pytest.raises(FloatingPointError, match=r"update 2: the gradient norm is nan over 21 trained tokens"):
        policy.train(batch.with_values(advantages=bad))
    assert_same(whole_state(policy), before)
    policy.train(batch)  # no gradient is left over
    other = make(tiny_model())
    other.train(batch)
    other.train(batch)
    assert_same(whole_state(policy), whole_state(other))


def test_updates_are_those_of_adamw_on_the_dense_model():
    settings = {"lr": 1e-2, "weight_decay": 0.1, "betas": [0.8, 0.9], "eps": 1e-6}
    schedule = {"warmup_steps": 2, "decay": "linear", "decay_steps": 4}
    policy = make(
        tiny_model(), policy={"optimizer": {"kwargs": settings}, "scheduler": schedule, "max_grad_norm": None}
    )
    model, batch = tiny_model().double(), random_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-6)
    for rate in (0.005, 0.01, 0.01, 0.0075):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        dense_loss(model, batch).backward()
        optimizer.step()
        assert policy.train(batch).metrics["learning_rate"] == pytest.approx(rate)
    assert policy.weight_version == 4
    for (name, ours), theirs in zip(policy.export_weights(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.double(), theirs.detach(), rtol=1e-4, atol=1e-5, msg=name)


def test_training_refuses_wrong_old_logprobs():
    batch = random_batch()
    with pytest.raises(AssertionError, match="old log-probs"):
        make(tiny_model()).train(batch.with_values(old_logprobs=None))
    with pytest.raises(AssertionError, match="old log-probs"):
        make(tiny_model(), loss_fn={"force_on_policy_ratio": True}).train(batch)


def test_padding_efficiency_counts_what_is_computed():
    batch = random_batch(lengths=(11, 3), prompts=(1, 1))
    # The last token of a sequence is never put in: 10 and 2 tokens are.
    static = make(tiny_model(), policy={"train_micro_batch_size": 2}).train(batch)
    packed = make(tiny_model(), policy={"sequence_packing": {"enabled": True}}).train(batch)
    assert static.metrics["padding_efficiency"] == pytest.approx(12 / 20)
    assert packed.metrics["padding_efficiency"] == 1.0


def test_forward_passes_of_an_update_are_its_micro_batches():
    model, calls = tiny_model(), []
    policy = make(model, policy={"train_micro_batch_size": 2})
    model.model.register_forward_pre_hook(lambda *_: calls.append(1))
    policy.train(random_batch(untrained=(0,)))
    assert len(calls) == 2  # four sequences have something to train


def test_every_metric_is_a_plain_finite_number():
    metrics = make(tiny_model()).train(random_batch()).metrics
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values()), metrics
