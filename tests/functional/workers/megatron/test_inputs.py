import warnings

import pytest
import torch

from grpo.batching.micro_batches import MicroBatch
from grpo.workers.policy.forward import needed_lengths
from tests.support.policy import random_batch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from grpo.workers.megatron.inputs import InputStream, idle_inputs, megatron_inputs
    from grpo.workers.megatron.parallel import stage_layers

CPU = torch.device("cpu")


def laid_out(width, multiple, *, thd=False):
    batch = random_batch(lengths=(5, 9, 3), prompts=(2, 4, 1))
    needed = needed_lengths(batch)  # 4, 8, 2
    micro = MicroBatch([0, 2, 1], width, (width or 0) * 3 or 14)
    return batch, megatron_inputs(batch, micro, needed, CPU, multiple=multiple, thd=thd)


@pytest.mark.parametrize("multiple", [1, 4, 5])
@pytest.mark.parametrize("width", [8, 11, None])
def test_a_predictor_is_the_token_before_its_target(width, multiple):
    batch, inputs = laid_out(width, multiple)
    rows, columns = inputs.input_ids.shape
    assert columns % multiple == 0
    assert inputs.positions.shape == (columns,)
    assert len(inputs.targets) == int(batch.mask.sum())
    sequence_first = inputs.input_ids.T.flatten()  # as the model's output is
    assert torch.equal(sequence_first[inputs.predictors], batch.tokens[inputs.trained - 1])
    assert torch.equal(batch.tokens[inputs.trained], inputs.targets)
    row_of = torch.tensor(inputs.rows)[inputs.sequence_ids]
    assert torch.equal(row_of, batch.sequence_ids[inputs.trained])
    assert rows == (3 if width else 1)


def test_what_widens_a_packed_row_is_a_sequence_of_its_own():
    _, inputs = laid_out(None, 4)
    assert inputs.packed.lengths == [4, 2, 8, 2]
    assert inputs.packed.cu_seqlens_q.tolist() == [0, 4, 6, 14, 16]
    assert inputs.packed.max_seqlen_q == 8
    assert inputs.positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    assert laid_out(None, 7)[1].packed.lengths == [4, 2, 8]


@pytest.mark.parametrize("thd", [True, False])
def test_only_transformer_engine_is_told_of_its_format(thd):
    assert (laid_out(None, 1, thd=thd)[1].packed.qkv_format == "thd") == thd


def test_an_idle_rank_has_a_row_and_nothing_to_train():
    inputs = idle_inputs(CPU, multiple=4)
    assert inputs.input_ids.shape == (1, 4)
    assert inputs.predictors.numel() == inputs.targets.numel() == 0
    assert inputs.rows == []


def test_stages_share_all_layers_in_order():
    assert [list(stage_layers(6, stage, 3)) for stage in range(3)] == [[0, 1], [2, 3], [4, 5]]


def test_micro_batches_are_laid_out_when_their_turn_comes():
    made = []

    def maker(width):
        def make():
            made.append(width)
            return laid_out(width, 1)[1]

        return make

    stream = InputStream([maker(8), maker(11)])
    assert len(stream) == 2
    turns = iter(stream)
    assert next(turns).input_ids.shape == (3, 8)
    assert made == [8]
    assert stream.computed == 24
    assert [each.input_ids.shape for each in turns] == [(3, 11)]
    assert stream.computed == 24 + 33
