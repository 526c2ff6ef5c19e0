import torch

from grpo.workers.policy.precision import MasterGradient, RoundedCopy
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


def test_a_linear_layers_gradient_goes_to_its_master_unrounded():
    masters = tiny_model("qwen2")  # with biases
    copy = RoundedCopy(masters, torch.bfloat16)
    layer, master = copy.module.model.layers[0].self_attn.q_proj, masters.model.layers[0].self_attn.q_proj
    generator = torch.Generator().manual_seed(0)
    expected_weight, expected_bias = torch.zeros(master.weight.shape).double(), torch.zeros(len(master.bias)).double()
    for rows in ((2, 5), (1, 7)):
        hidden = torch.randn(*rows, 24, generator=generator).bfloat16().requires_grad_()
        given = torch.randn(*rows, len(master.bias), generator=generator).bfloat16()
        result = layer(hidden)
        assert torch.equal(result, torch.nn.functional.linear(hidden, layer.weight, layer.bias))
        result.backward(given)
        torch.testing.assert_close(hidden.grad, given @ layer.weight)
        expected_weight += given.double().flatten(0, 1).T @ hidden.double().flatten(0, 1)
        expected_bias += given.double().sum((0, 1))
    assert layer.weight.grad is None
    assert layer.bias.grad is None
    torch.testing.assert_close(master.weight.grad.double(), expected_weight, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(master.bias.grad.double(), expected_bias, rtol=1e-2, atol=1e-2)


def test_a_tied_weight_has_the_gradients_of_both_its_uses():
    masters = tiny_model(tied=True)
    copy = RoundedCopy(masters, torch.bfloat16)
    embedding = copy.module.get_input_embeddings()
    hidden, left = torch.ones(3, 24, dtype=torch.bfloat16), torch.zeros(3, 37, dtype=torch.bfloat16)
    left[:, 5] = 2.0
    copy.head_gradient.add_product(left, hidden)
    assert embedding.padding_idx == 0
    embedding(torch.tensor([[5, 5, 7, 0]])).sum().backward()  # the padding token has no gradient
    expected = torch.zeros(37, 24)
    expected[5], expected[7] = 6.0 + 2.0, 1.0
    assert torch.equal(masters.get_input_embeddings().weight.grad, expected)


def test_rows_that_are_looked_up_often_add_up_unrounded():
    masters = tiny_model()
    copy = RoundedCopy(masters, torch.bfloat16)
    for _ in range(2):
        copy.module.get_input_embeddings()(torch.full((1, 300), 3)).mul(2.0**-8).sum().backward()
    gradient = masters.get_input_embeddings().weight.grad
    assert (gradient[3] == 600 / 256).all()
    assert gradient.count_nonzero() == gradient.shape[1]


def test_rows_of_an_embedding_are_added_in_one_order_on_several_threads():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 256, (4096,), generator=generator)
    values = torch.randn(4096, 64, generator=generator)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = []
        for _ in range(5):
            master = torch.zeros(256, 64)
            MasterGradient(master).add_rows(rows, values)
            found.append(master.grad)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(each, found[0]) for each in found)
    expected = torch.zeros(256, 64, dtype=torch.float64).index_add_(0, rows, values.double())
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-5)
