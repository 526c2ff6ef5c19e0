"""One micro-batch through the model: from sequences end to end to the hidden states that predict the trained tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grpo.batching.batch import Batch
from grpo.batching.micro_batches import MicroBatch


@dataclass(frozen=True)
class ModelInputs:
    """What the model is called with, and where in its output the trained tokens are predicted.

    Padding is on the right and causal attention never looks there, so that no attention mask is needed. Packed sequences
    are one row whose positions start again with each sequence: attention is kept apart by that alone.
    """

    input_ids: Tensor  # [R, W] int64
    position_ids: Tensor  # [1, W] int64
    predictors: Tensor  # [N] int64: flat positions in [R, W] whose hidden state predicts a trained token
    targets: Tensor  # [N] int64: those tokens
    trained: Tensor  # [N] int64: their positions in the batch's token dimension
    sequence_ids: Tensor  # [N] int64: which of the micro-batch's sequences each belongs to


def needed_lengths(batch: Batch) -> Tensor:
    """[B] int64: leading tokens of each sequence that the model must see to predict its trained ones; 0 if there are none."""
    positions = torch.arange(batch.tokens.numel(), device=batch.tokens.device) - batch.starts[batch.sequence_ids]
    zeros = torch.zeros_like(batch.lengths)
    return zeros.scatter_reduce(0, batch.sequence_ids, positions.where(batch.mask, 0), "amax")


def model_inputs(batch: Batch, micro: MicroBatch, needed: Tensor) -> ModelInputs:
    """Lay the sequences of `micro` out as rows of its width, or as one row. `needed` is `needed_lengths(batch)`."""
    rows = torch.as_tensor(micro.rows, device=needed.device)
    lengths, starts = needed[rows], batch.starts[rows]
    count = torch.arange(len(micro.rows), device=needed.device)
    owner = torch.repeat_interleave(count, lengths)  # [sum of lengths]
    offsets = lengths.cumsum(0) - lengths
    position = torch.arange(owner.numel(), device=needed.device) - offsets[owner]
    source = starts[owner] + position  # in the batch's token dimension
    if micro.width is None:
        flat = torch.arange(owner.numel(), device=needed.device)
        input_ids, position_ids = batch.tokens[source][None], position[None]
    else:
        flat = owner * micro.width + position
        padded = torch.zeros(len(micro.rows) * micro.width, dtype=torch.int64, device=needed.device)
        input_ids = padded.index_copy_(0, flat, batch.tokens[source]).view(len(micro.rows), micro.width)
        position_ids = torch.arange(micro.width, device=needed.device)[None]
    trained = source + 1
    chosen = batch.mask[trained].nonzero()[:, 0]
    trained = trained[chosen]
    return ModelInputs(input_ids, position_ids, flat[chosen], batch.tokens[trained], trained, owner[chosen])


def predictor_states(model: nn.Module, inputs: ModelInputs) -> Tensor:
    """[N, H]: the last hidden states, after the final norm, at `inputs.predictors`."""
    trunk = model.get_decoder()
    output = trunk(input_ids=inputs.input_ids, position_ids=inputs.position_ids, use_cache=False)
    hidden = output.last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, inputs.predictors)
