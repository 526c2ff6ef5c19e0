"""What a policy is made of, and its log-probs."""

import pytest
import torch

from grpo.batching.batch import Batch
from grpo.errors import ConfigError, ModelError
from grpo.workers.policy.dtensor import DTensorPolicy
from tests.support.dense_policy import make
from tests.support.policy import dense_logprobs, random_batch, tiny_config, tiny_model


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("batching", [{"logprob_batch_size": 2}, {"sequence_packing": {"enabled": True}}])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_transformers(kind, tied, batching, temperature):
    model, batch = tiny_model(kind, tied=tied), random_batch(untrained=(1,))
    expected = dense_logprobs(tiny_model(kind, tied=tied).double(), batch, temperature).detach()
    ours = make(model, policy={**batching, "generation": {"temperature": temperature}}).logprobs(batch)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), expected, rtol=2e-5, atol=2e-5)
    assert (ours[~batch.mask] == 0).all()


def test_logprobs_are_aligned_with_their_tokens():
    # A model that is sure of next = previous + 1: identity embedding, no layers' contribution, shifted identity head.
    size = 8
    model = tiny_model(
        vocab_size=size,
        hidden_size=size,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=size,
        pad_token_id=None,
    )
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.copy_(100 * torch.eye(size).roll(1, 0))
    tokens = torch.tensor([0, 1, 2, 3, 4, 3, 4, 5])
    mask = torch.tensor([False, True, True, True, True, False, True, True])
    batch = Batch(tokens, torch.tensor([5, 3]), mask, torch.zeros(8))
    logprobs = make(model).logprobs(batch)
    torch.testing.assert_close(logprobs, torch.zeros(8), rtol=0, atol=1e-6)
    wrong = make(model).logprobs(batch.with_values(tokens=tokens.clone().index_fill_(0, torch.tensor([2]), 6)))
    assert (wrong[[2, 3]] < -100).all()
    assert (wrong[[1, 4, 6, 7]].abs() < 1e-6).all()


def test_an_unsupported_architecture_is_refused():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    with pytest.raises(ModelError, match="model_type 'gemma2'"):
        make(Gemma2ForCausalLM(config))


def test_from_config_loads_model_and_reference(tmp_path):
    from grpo.models.shipped import materialise

    folder = materialise("tiny-digits", tmp_path / "model", seed=3)
    for penalty in (0.0, 0.1):
        config = tiny_config(policy={"model_name": str(folder)}, loss_fn={"reference_policy_kl_penalty": penalty})
        config = config.model_copy(update={"cluster": config.cluster.model_copy(update={"gpus_per_node": 0})})
        policy = DTensorPolicy.from_config(config)
        assert (policy._reference is not None) == (penalty != 0)
        batch = random_batch()
        batch = batch.with_values(tokens=batch.tokens % 10)
        if penalty:
            assert torch.equal(policy.reference_logprobs(batch), policy.logprobs(batch))
            policy.train(batch)
            assert not torch.equal(policy.reference_logprobs(batch), policy.logprobs(batch))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"cluster\.gpus_per_node is 1 but torch finds no GPU"):
        DTensorPolicy.from_config(tiny_config())
