"""What a weight update must bring."""

import pytest
import torch

from grpo.errors import GenerationError
from grpo.models.loading import load_model
from grpo.workers.generation.expected_weights import ExpectedWeights
from tests.support.generation import VOCABULARY, weights_of, write_model


@pytest.mark.parametrize("tied", [False, True])
def test_names_and_shapes_come_from_the_config_alone(tmp_path, tied):
    folder = write_model(tmp_path, tied=tied)
    whole = {name: tuple(tensor.shape) for name, tensor in weights_of(folder)}
    (folder / "model.safetensors").unlink()
    expected = ExpectedWeights.of_folder(folder)
    assert expected.shapes == whole
    assert expected.aliases == ({"lm_head.weight": "model.embed_tokens.weight"} if tied else {})
    assert expected.vocabulary == VOCABULARY


def test_a_complete_set_passes_in_any_order(tmp_path):
    model = load_model(write_model(tmp_path), dtype=torch.float32)
    weights = list(model.named_parameters())[::-1]
    passed = list(ExpectedWeights.of_module(model, VOCABULARY).checked(weights))
    assert [name for name, _ in passed] == [name for name, _ in weights]


def test_a_wrong_weight_is_refused_before_the_next_is_asked_for():
    module = torch.nn.Linear(2, 3)
    expected = ExpectedWeights.of_module(module, 2)

    def weights():
        yield "weight", torch.zeros(3, 2)
        yield "bias", torch.zeros(4)
        raise AssertionError("asked for more")

    with pytest.raises(GenerationError, match=r"bias has shape \(4,\), the engine's is \(3,\)"):
        list(expected.checked(weights()))


def test_a_tied_weight_under_its_second_name_is_refused(tmp_path):
    expected = ExpectedWeights.of_folder(write_model(tmp_path, tied=True))
    with pytest.raises(GenerationError, match=r"lm_head.weight is tied to model.embed_tokens.weight"):
        list(expected.checked([("lm_head.weight", torch.zeros(VOCABULARY, 64))]))


def test_what_is_missing_is_counted_and_named():
    expected = ExpectedWeights.of_module(torch.nn.Linear(2, 3), 2)
    with pytest.raises(GenerationError, match=r"1 of 2 weights are missing, the first is bias"):
        list(expected.checked([("weight", torch.zeros(3, 2))]))


@pytest.mark.parametrize(("in_place", "left"), [(False, "keeps its old weights"), (True, "generates nothing until")])
def test_an_error_says_what_it_leaves(in_place, left):
    expected = ExpectedWeights.of_module(torch.nn.Linear(2, 3), 2)
    for weights in ([("weight", torch.zeros(3, 2))], [("other", torch.zeros(1))], [("weight", torch.zeros(2, 2))]):
        with pytest.raises(GenerationError, match=left):
            list(expected.checked(weights, in_place=in_place))
