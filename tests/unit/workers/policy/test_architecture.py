import pytest
import torch

from grpo.errors import ModelError
from grpo.workers.policy.architecture import check_supported, checkpoint_activations, output_weight
from tests.support.policy import tiny_model


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_supported_architectures(kind):
    for tied in (True, False):
        model = tiny_model(kind, tied=tied)
        check_supported(model)
        assert output_weight(model) is model.lm_head.weight


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("llama", {"attention_dropout": 0.1}, r"attention_dropout 0\.1"),
    ],
)
def test_settings_that_would_make_log_probs_wrong_are_refused(kind, settings, message):
    with pytest.raises(ModelError, match=message):
        check_supported(tiny_model(kind, **settings))


def test_an_output_bias_is_refused():
    model = tiny_model()
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(37))
    with pytest.raises(ModelError, match=r"lm_head\.bias"):
        check_supported(model)


def test_logits_are_the_output_weight_times_the_last_hidden_state():
    for kind in ("llama", "qwen2", "qwen3"):
        model, tokens = tiny_model(kind), torch.tensor([[3, 1, 4, 1, 5]])
        with torch.no_grad():
            hidden = model.get_decoder()(input_ids=tokens).last_hidden_state
            torch.testing.assert_close(hidden @ output_weight(model).T, model(input_ids=tokens).logits)


def test_checkpointed_activations_are_made_again_in_the_backward_pass():
    model, tokens = tiny_model(), torch.tensor([[3, 1, 4, 1, 5]])
    calls = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append("mlp"))
    model(input_ids=tokens, use_cache=False).logits.sum().backward()
    assert len(calls) == 1
    plain = {name: each.grad for name, each in model.named_parameters()}
    model.zero_grad()
    checkpoint_activations(model)
    assert not model.model.layers[0].self_attn.training  # dropout stays off
    model(input_ids=tokens, use_cache=False).logits.sum().backward()
    assert len(calls) == 3
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, plain[name])
