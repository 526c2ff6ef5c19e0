import torch

from grpo.workers.policy.precision import RoundedCopy
from tests.support.policy import tiny_model


def test_parameters_are_rounded_and_buffers_are_not():
    masters = tiny_model()
    rounded = RoundedCopy(masters, torch.bfloat16).module
    for (name, wide), narrow in zip(masters.named_parameters(), rounded.parameters(), strict=True):
        assert wide.dtype == torch.float32
        assert torch.equal(narrow, wide.bfloat16()), name
    assert rounded.model.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.equal(rounded.model.rotary_emb.inv_freq, masters.model.rotary_emb.inv_freq)


def test_tied_weights_stay_tied():
    rounded = RoundedCopy(tiny_model(tied=True), torch.bfloat16).module
    assert rounded.lm_head.weight is rounded.model.embed_tokens.weight


def test_gradients_of_several_backwards_add_up_in_float32():
    masters = tiny_model()
    copy = RoundedCopy(masters, torch.bfloat16)
    weight = copy.module.model.norm.weight
    for factor in (1.0, 2.0**-10, 2.0**-10):  # in bfloat16 1 + 2^-10 is 1
        (weight * factor).sum().backward()
        assert weight.grad is None
    assert (masters.model.norm.weight.grad == 1 + 2.0**-9).all()


def test_refresh_follows_the_masters():
    masters = tiny_model()
    copy = RoundedCopy(masters, torch.bfloat16)
    with torch.no_grad():
        masters.model.norm.weight.fill_(1 / 3)
    assert not torch.equal(copy.module.model.norm.weight, masters.model.norm.weight.bfloat16())
    copy.refresh()
    assert torch.equal(copy.module.model.norm.weight, masters.model.norm.weight.bfloat16())
