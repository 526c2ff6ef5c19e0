"""Weights that are replaced all at once or not at all."""

import pytest
import torch
from torch import nn

from grpo.errors import GenerationError
from grpo.workers.generation.engine_weights import EngineWeights


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 2, bias=False)
        self.b = nn.Linear(3, 4, bias=False)
        self.tied = nn.Linear(3, 4, bias=False)
        self.tied.weight = self.b.weight


def fresh() -> list[tuple[str, torch.Tensor]]:
    return [("a.weight", torch.full((2, 3), 5.0)), ("b.weight", torch.full((4, 3), 6.0))]


@pytest.fixture
def module() -> Pair:
    return Pair().requires_grad_(False)


def test_fused_parameters_are_slices_of_one_block(module):
    before = {name: value.clone() for name, value in module.named_parameters()}
    weights = EngineWeights(module, 3, [["a.weight", "b.weight"]])
    block = weights.block("a.weight", "b.weight")
    assert torch.equal(block, torch.cat((before["a.weight"], before["b.weight"])))
    block[0] = 7.0
    assert module.a.weight[0].tolist() == [7.0] * 3
    block[3] = 8.0
    assert module.tied.weight[1].tolist() == [8.0] * 3


def test_a_new_set_is_what_the_module_computes_with(module):
    weights = EngineWeights(module, 3, [["a.weight", "b.weight"]])
    weights.replace(fresh())
    assert module.a(torch.ones(3)).tolist() == [15.0] * 2
    assert module.tied(torch.ones(3)).tolist() == [18.0] * 4
    assert weights.block("a.weight", "b.weight").tolist() == [[5.0] * 3] * 2 + [[6.0] * 3] * 4


def test_second_names_find_the_tied_block(module):
    weights = EngineWeights(module, 3)
    assert weights.block("tied.weight") is weights.block("b.weight")


def test_weights_are_copied_and_cast(module):
    weights = EngineWeights(module.to(torch.bfloat16), 3)
    sent = fresh()
    weights.replace(sent)
    sent[0][1].zero_()
    assert module.a.weight.dtype == torch.bfloat16
    assert module.a.weight[0, 0] == 5.0


@pytest.mark.parametrize("count", [0, 1])
def test_an_incomplete_set_changes_nothing(module, count):
    weights = EngineWeights(module, 3)
    before = {name: value.clone() for name, value in module.named_parameters()}
    with pytest.raises(GenerationError, match="missing"):
        weights.replace(fresh()[:count])
    assert all(torch.equal(value, before[name]) for name, value in module.named_parameters())
