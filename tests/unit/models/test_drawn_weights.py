import pytest
import torch

from grpo.models.drawn_weights import DrawnWeights, drawn_model
from grpo.models.loading import load_model
from tests.support.policy import MODELS, tiny_model

CPU = torch.device("cpu")


@pytest.fixture(params=[(kind, tied) for kind in MODELS for tied in (True, False)], ids=str)
def folder(request, tmp_path):
    kind, tied = request.param
    tiny_model(kind, tied=tied).config.save_pretrained(tmp_path)  # a padding row among the embeddings
    return tmp_path


def test_distributions_are_those_of_the_models_own_construction(folder):
    expected = dict(load_model(folder, dtype=torch.float32, random_weights=True, seed=3).named_parameters())
    drawn = DrawnWeights(folder, 3, CPU)
    assert list(drawn) == list(expected)
    for name, each in expected.items():
        found = drawn[name]
        assert found.shape == each.shape, name
        assert torch.equal(found == 0, each == 0), name  # biases, the padding row
        if each.unique().numel() == 1:
            assert torch.equal(found, each), name  # norms
            continue
        assert not torch.equal(found, each), name
        deviation = each.std() / each.numel() ** 0.5
        assert abs(found.mean() - each.mean()) < 6 * deviation, name
        assert abs(found.std() / each.std() - 1) < 5 / each.numel() ** 0.5, name


def test_a_weight_is_the_same_whenever_and_in_whatever_parts_it_is_drawn(folder):
    state = torch.get_rng_state()
    drawn, again = DrawnWeights(folder, 3, CPU), dict(reversed(list(DrawnWeights(folder, 3, CPU).readers())))
    for name, whole in drawn.items():
        part = tuple(slice(size // 3, size) for size in whole.shape)
        assert torch.equal(again[name](part), whole[part]), name
    assert torch.equal(torch.get_rng_state(), state)


def test_every_weight_and_seed_has_numbers_of_its_own(folder):
    drawn, other = DrawnWeights(folder, 3, CPU), DrawnWeights(folder, 4, CPU)
    assert not torch.equal(drawn["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    first, second = (drawn[f"model.layers.{layer}.mlp.gate_proj.weight"] for layer in (0, 1))
    assert not torch.equal(first, second)


def test_a_drawn_model_is_whole(folder):
    model, drawn = drawn_model(folder, 3, CPU), DrawnWeights(folder, 3, CPU)
    expected = load_model(folder, dtype=torch.float32, random_weights=True)
    assert not model.training
    assert all(each.requires_grad for each in model.parameters())
    assert {name for name, _ in model.named_parameters()} == set(drawn)
    for name, each in model.named_parameters():
        assert torch.equal(each, drawn[name]), name
    for name, each in expected.named_buffers():
        assert torch.equal(model.get_buffer(name), each), name
    assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()
