import pytest
import torch

from grpo.batching.batch import Batch
from grpo.batching.micro_batches import MicroBatch
from grpo.workers.policy.forward import model_inputs, needed_lengths, predictor_states
from grpo.workers.policy.layers import use_own_layers
from tests.support.policy import VOCABULARY, random_batch, tiny_model

CPU = torch.device("cpu")


def computed(batch, rows, width):
    return int(needed_lengths(batch)[rows].sum()) if width is None else width * len(rows)


def states(model, batch, rows, width):
    inputs = model_inputs(batch, MicroBatch(rows, width, computed(batch, rows, width)), needed_lengths(batch), CPU)
    with torch.no_grad():
        return predictor_states(model, inputs), inputs


def transformers_states(model, batch, row, *, left_padding=0):
    """[number of trained tokens, H] for one sequence, through transformers' own attention with a padding mask."""
    start, length = int(batch.starts[row]), int(batch.lengths[row])
    tokens, mask = batch.tokens[start : start + length], batch.mask[start : start + length]
    padded = torch.cat([torch.zeros(left_padding, dtype=torch.int64), tokens])[None]
    attention = (torch.arange(padded.shape[1]) >= left_padding)[None].long()
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        hidden = model.model(input_ids=padded, attention_mask=attention, position_ids=positions).last_hidden_state[0]
    return hidden[left_padding:][mask.nonzero()[:, 0] - 1]


def test_needed_lengths_end_before_the_last_trained_token():
    mask = torch.tensor([0, 0, 1, 1, 0, *(0, 0, 0), *(0, 1), *(0, 1, 0, 1, 0, 0)], dtype=torch.bool)
    batch = Batch(torch.arange(16), torch.tensor([5, 3, 2, 6]), mask, torch.zeros(16))
    assert needed_lengths(batch).tolist() == [3, 0, 1, 3]


def test_padded_inputs_on_a_worked_example():
    mask = torch.tensor([0, 1, 1, *(0, 0, 1, 0)], dtype=torch.bool)
    batch = Batch(torch.tensor([10, 11, 12, 20, 21, 22, 23]), torch.tensor([3, 4]), mask, torch.zeros(7))
    inputs = model_inputs(batch, MicroBatch([1, 0], 3, 6), needed_lengths(batch), CPU)
    assert inputs.input_ids.tolist() == [[20, 21, 0], [10, 11, 0]]
    assert inputs.position_ids.tolist() == [[0, 1, 2]]
    assert inputs.predictors.tolist() == [1, 3, 4]
    assert inputs.targets.tolist() == [22, 11, 12]
    assert inputs.trained.tolist() == [5, 1, 2]
    assert inputs.sequence_ids.tolist() == [0, 1, 1]
    assert inputs.packed is None


def test_packed_inputs_on_a_worked_example():
    mask = torch.tensor([0, 1, 1, *(0, 0, 1, 0)], dtype=torch.bool)
    batch = Batch(torch.tensor([10, 11, 12, 20, 21, 22, 23]), torch.tensor([3, 4]), mask, torch.zeros(7))
    inputs = model_inputs(batch, MicroBatch([0, 1], None, 4), needed_lengths(batch), CPU)
    assert inputs.input_ids.tolist() == [[10, 11, 20, 21]]
    assert inputs.position_ids.tolist() == [[0, 1, 0, 1]]
    assert inputs.predictors.tolist() == [0, 1, 3]
    assert inputs.targets.tolist() == [11, 12, 22]
    assert inputs.packed.lengths == [2, 2]
    assert inputs.packed.cumulative.tolist() == [0, 2, 4]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("left_padding", [0, 3])
def test_padded_and_packed_rows_equal_transformers_own_forward(kind, left_padding):
    model, batch = tiny_model(kind), random_batch()
    rows = [3, 0, 4, 1, 2]
    expected = torch.cat([transformers_states(model, batch, row, left_padding=left_padding) for row in rows])
    use_own_layers(model)
    for width in (11, 16, None):
        ours, inputs = states(model, batch, rows, width)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(
            inputs.trained, torch.cat([batch.token_indices([row])[batch.select([row]).mask] for row in rows])
        )


@pytest.mark.parametrize("width", [11, None])
def test_a_neighbour_changes_nothing(width):
    model, batch = tiny_model(), random_batch()
    use_own_layers(model)
    before, inputs = states(model, batch, [0, 1, 3], width)
    changed = batch.tokens.clone()
    neighbour = batch.token_indices([1])
    changed[neighbour] = (changed[neighbour] + 1) % VOCABULARY
    after, _ = states(model, batch.with_values(tokens=changed), [0, 1, 3], width)
    others = inputs.sequence_ids != 1
    assert torch.equal(before[others], after[others])
    assert not torch.isclose(before[~others], after[~others]).all()


@pytest.mark.parametrize("width", [11, None])
def test_gradients_of_packed_and_padded_rows_are_those_of_transformers(width):
    batch, rows = random_batch(), [3, 0, 4, 1, 2]
    model = tiny_model()
    inputs = model_inputs(batch, MicroBatch(rows, width, computed(batch, rows, width)), needed_lengths(batch), CPU)
    weights = torch.randn(len(inputs.targets), 24, generator=torch.Generator().manual_seed(1))
    expected_model = tiny_model().double()
    parts = []
    for row in rows:
        tokens = batch.tokens[batch.token_indices([row])]
        mask = batch.mask[batch.token_indices([row])]
        parts.append(expected_model.model(input_ids=tokens[None]).last_hidden_state[0][mask.nonzero()[:, 0] - 1])
    (torch.cat(parts) * weights.double()).sum().backward()
    use_own_layers(model)
    (predictor_states(model, inputs) * weights).sum().backward()
    for (name, ours), theirs in zip(model.model.named_parameters(), expected_model.model.parameters(), strict=True):
        error = (ours.grad.double() - theirs.grad).norm() / theirs.grad.norm()
        assert error < 2e-6, (name, error)


def test_a_packed_row_is_padded_to_what_is_computed_and_nothing_sees_the_padding():
    batch, rows, model = random_batch(), [1, 0, 3], tiny_model()
    use_own_layers(model)
    needed = needed_lengths(batch)
    tokens = int(needed[rows].sum())
    padded = model_inputs(batch, MicroBatch(rows, None, tokens + 3), needed, CPU)
    plain = model_inputs(batch, MicroBatch(rows, None, tokens), needed, CPU)
    assert padded.input_ids.shape == padded.position_ids.shape == (1, tokens + 3)
    assert padded.packed.lengths == [*plain.packed.lengths, 3]
    for name in ("predictors", "targets", "trained", "sequence_ids"):
        assert torch.equal(getattr(padded, name), getattr(plain, name))
    with torch.no_grad():
        torch.testing.assert_close(predictor_states(model, padded), predictor_states(model, plain), rtol=0, atol=1e-6)


def test_a_dummy_has_one_predictor_and_no_token_of_the_batch():
    batch = random_batch()
    inputs = model_inputs(batch, MicroBatch([], 4, 4), needed_lengths(batch), CPU)
    assert inputs.input_ids.tolist() == inputs.position_ids.tolist() == [[0, 0, 0, 0]]
    assert inputs.predictors.tolist() == inputs.targets.tolist() == [0]
    assert inputs.trained.numel() == 0
