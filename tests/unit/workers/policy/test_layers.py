import copy

import pytest
import torch

from grpo.workers.policy.layers import use_own_layers
from tests.support.policy import VOCABULARY, tiny_model


def states(model, tokens):
    return model.get_decoder()(
        input_ids=tokens, position_ids=torch.arange(tokens.shape[1])[None], use_cache=False
    ).last_hidden_state


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_states_and_gradients_are_those_of_transformers(kind, tied):
    tokens = torch.randint(0, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(0))
    theirs, ours = tiny_model(kind, tied=tied).double(), tiny_model(kind, tied=tied).double()
    use_own_layers(ours)
    with torch.no_grad():  # norms' weights are 1 in a new model
        for number, (one, other) in enumerate(zip(theirs.parameters(), ours.parameters(), strict=True)):
            one.mul_(1 + 0.1 * torch.sin(torch.arange(one.shape[-1]) + number))
            other.copy_(one)
    found = [states(each, tokens) for each in (theirs, ours)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)  # transformers norms in float32
    for each in found:
        (each * torch.linspace(-1, 1, each.numel(), dtype=torch.float64).view(each.shape)).sum().backward()
    for (name, one), other in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        if one.grad is not None:
            assert (other.grad - one.grad).norm() < 2e-6 * one.grad.norm(), name


def test_every_part_of_a_layer_is_changed_and_keeps_its_parameters():
    model = tiny_model("qwen3")
    before = {name: type(each) for name, each in model.named_modules()}
    weights = dict(model.named_parameters())
    use_own_layers(model)
    changed = {name.rpartition(".")[2] for name, each in model.named_modules() if type(each) is not before[name]}
    assert changed == {"input_layernorm", "post_attention_layernorm", "self_attn", "q_norm", "k_norm", "mlp", "norm"}
    assert all(each is weights[name] for name, each in model.named_parameters())
    assert all(isinstance(each, before[name]) for name, each in model.named_modules())


def test_doing_it_twice_is_doing_it_once_and_copies_are_models_of_their_own():
    model = tiny_model()
    use_own_layers(model)
    kinds = [type(each) for each in model.modules()]
    use_own_layers(model)
    assert [type(each) for each in model.modules()] == kinds
    other = copy.deepcopy(model)
    tokens = torch.arange(6)[None]
    before = states(model, tokens)
    with torch.no_grad():
        for each in other.parameters():
            each.zero_()
    assert torch.equal(states(model, tokens), before)
    assert not states(other, tokens).any()


def test_an_mlp_of_another_activation_stays_transformers_own():
    model, plain = tiny_model(hidden_act="gelu"), tiny_model(hidden_act="gelu")
    use_own_layers(model)
    tokens = torch.arange(6)[None]
    torch.testing.assert_close(states(model, tokens), states(plain, tokens))
