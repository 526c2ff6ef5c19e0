import pytest
import torch

from grpo.batching.micro_batches import MicroBatch
from grpo.workers.policy.forward import model_inputs, needed_lengths
from grpo.workers.policy.layers import use_own_layers
from grpo.workers.policy.logprob_model import LogprobModel, attention_width, matrix_parameters
from tests.support.policy import VOCABULARY, dense_logprobs, random_batch, tiny_config, tiny_model


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_dense_model(temperature):
    model, batch, rows = tiny_model(), random_batch(), [2, 0, 3]
    expected = dense_logprobs(model, batch, temperature)
    use_own_layers(model)
    policy = tiny_config(policy={"generation": {"temperature": temperature}, "logprob_chunk_size": 4}).policy
    inputs = model_inputs(batch, MicroBatch(rows, 11, 33), needed_lengths(batch), torch.device("cpu"))
    values = LogprobModel.of(model, policy)(inputs, with_entropy=True)
    torch.testing.assert_close(values.logprobs, expected[inputs.trained], rtol=1e-5, atol=1e-5)
    assert (values.entropy > 0).all()
    assert LogprobModel.of(model, policy)(inputs, with_entropy=False).entropy is None


@pytest.mark.parametrize("tied", [True, False])
def test_sizes_that_the_work_of_a_sequence_is_made_of(tied):
    model = tiny_model(tied=tied)
    # 2 layers: q and o 24 x 32 each, k and v 24 x 16 each, three of 24 x 40; the output weight
    assert matrix_parameters(model) == 2 * (2 * 24 * 32 + 2 * 24 * 16 + 3 * 24 * 40) + VOCABULARY * 24
    assert attention_width(model) == 2 * 4 * 8
