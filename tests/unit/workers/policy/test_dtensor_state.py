"""Saving, restoring and exporting a policy; its reference."""

import pytest
import torch

from grpo.errors import CheckpointError
from tests.support.dense_policy import make
from tests.support.policy import dense_logprobs, random_batch, tiny_model, whole_state
from tests.support.policy_state import (
    assert_same,
    check_that_a_fresh_policy_can_be_restored,
    check_that_a_restored_policy_goes_on,
)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_restored_policy_goes_on_bit_for_bit(precision, tied):
    settings = {"precision": precision, "scheduler": {"warmup_steps": 4}, "optimizer": {"kwargs": {"lr": 1e-3}}}
    check_that_a_restored_policy_goes_on(lambda seed: make(tiny_model(tied=tied, seed=seed), policy=settings))


def test_a_fresh_policy_can_be_saved_and_restored():
    check_that_a_fresh_policy_can_be_restored(lambda seed: make(tiny_model(seed=seed)))


def test_restoring_does_not_keep_the_given_tensors():
    policy, batch = make(tiny_model()), random_batch()
    policy.train(batch)
    saved = whole_state(policy)
    kept = {name: each.clone() for name, each in saved[0].items()}
    policy.load_state(*saved)
    policy.train(batch)
    assert all(torch.equal(saved[0][name], kept[name]) for name in kept)


def test_a_checkpoint_of_another_model_is_refused_and_nothing_is_loaded():
    policy, batch = make(tiny_model()), random_batch()
    policy.train(batch)
    before = whole_state(policy)
    wider = make(tiny_model(intermediate_size=44))
    with pytest.raises(CheckpointError, match=r"another model: model\.model\.layers\.0\.mlp.*shape \[44, 24\] there"):
        policy.load_state(*whole_state(wider))
    deeper = make(tiny_model(num_hidden_layers=3))
    with pytest.raises(CheckpointError, match=r"names differ, first model\.model\.layers\.2"):
        policy.load_state(*whole_state(deeper))
    tensors = {name: each for name, each in before[0].items() if not name.endswith("lm_head.weight.exp_avg")}
    with pytest.raises(CheckpointError, match=r"1 names differ, first lm_head\.weight\.exp_avg"):
        policy.load_state(tensors, before[1])
    assert_same(whole_state(policy), before)


def test_exported_weights_have_transformers_names_and_tied_ones_come_once():
    for tied, head in ((True, False), (False, True)):
        policy = make(tiny_model(tied=tied))
        names = [name for name, _ in policy.export_weights()]
        assert len(names) == len(set(names))
        assert "model.embed_tokens.weight" in names
        assert ("lm_head.weight" in names) == head
        policy.train(random_batch())
        other = tiny_model(tied=tied, seed=5)
        other.load_state_dict(dict(policy.export_weights()), strict=False)
        other.tie_weights()
        batch = random_batch()
        torch.testing.assert_close(policy.logprobs(batch), dense_logprobs(other, batch).detach(), rtol=1e-4, atol=1e-5)


def test_reference_stays_what_it_was():
    loss_fn = {"reference_policy_kl_penalty": 0.1}
    batch = random_batch()
    policy = make(tiny_model(), policy={"optimizer": {"kwargs": {"lr": 1e-2}}}, loss_fn=loss_fn, reference=tiny_model())
    before = policy.reference_logprobs(batch)
    assert torch.equal(before, policy.logprobs(batch))
    policy.train(batch)
    assert torch.equal(policy.reference_logprobs(batch), before)
    assert not torch.allclose(policy.logprobs(batch), before)


def test_reference_is_there_exactly_for_a_kl_term():
    with pytest.raises(AssertionError, match="KL term"):
        make(tiny_model(), reference=tiny_model())
    with pytest.raises(AssertionError, match="KL term"):
        make(tiny_model(), loss_fn={"reference_policy_kl_penalty": 0.1})
    with pytest.raises(AssertionError, match="reference_policy_kl_penalty is 0"):
        make(tiny_model()).reference_logprobs(random_batch())
