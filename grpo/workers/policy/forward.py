"""One micro-batch through the model: from sequences end to end to the hidden states that predict the trained tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from grpo.batching.batch import Batch
from grpo.batching.micro_batches import MicroBatch
from grpo.workers.policy.attention import PackedBounds
from grpo.workers.policy.transfer import to_device


@dataclass(frozen=True)
class ModelInputs:
    """What the model is called with, and where in its output the trained tokens are predicted.

    Padding is on the right, where causal attention never looks, so there is no attention mask. All but `trained` and
    `sequence_ids`, which index the batch, are on the model's device.
    """

    input_ids: Tensor  # [R, W] int64; [1, W] where packed
    position_ids: Tensor  # [1, W] int64
    packed: PackedBounds | None
    predictors: Tensor  # [N] int64: flat positions in [R, W] whose hidden state predicts a trained token
    targets: Tensor  # [N] int64: those tokens
    trained: Tensor  # [N] int64: their positions in the batch's token dimension
    sequence_ids: Tensor  # [N] int64: which of the micro-batch's sequences each belongs to


def needed_lengths(batch: Batch) -> Tensor:
    """[B] int64: leading tokens of each sequence that the model must see to predict its trained ones.

    The last trained token itself is not among them. 0: no token is trained.
    """
    # In numpy, on one thread: torch would start all of its own for as many tokens, and wait for those that another
    # process keeps from running.
    trained = np.flatnonzero(batch.mask.numpy())
    starts = batch.starts.numpy()
    before_end = np.searchsorted(trained, starts + batch.lengths.numpy())  # trained tokens up to a sequence's end
    last = np.concatenate(([-1], trained))[before_end]
    return torch.from_numpy(np.maximum(last - starts, 0))


def trained_tokens(batch: Batch) -> int:
    """Of the whole batch."""
    return int(np.count_nonzero(batch.mask.numpy()))


def model_inputs(batch: Batch, micro: MicroBatch, needed: Tensor, device: torch.device) -> ModelInputs:
    """Lay the sequences of `micro` out as rows of its width, or as one row where it has none.

    A dummy micro-batch has one token, whose log-prob is made and used for nothing: its `trained` is empty.
    `batch` and `needed`, which is `needed_lengths(batch)`, are on the CPU: indices are worked out there and nothing
    waits for the device.
    """
    if not micro.rows:
        return _dummy_inputs(micro.computed_tokens, device)
    rows = torch.as_tensor(micro.rows)
    lengths = needed[rows]
    owner = torch.repeat_interleave(torch.arange(len(micro.rows)), lengths)  # [sum of lengths]
    flat = torch.arange(owner.numel())
    position = flat - (lengths.cumsum(0) - lengths)[owner]
    source = batch.starts[rows][owner] + position  # in the batch's token dimension
    if micro.width is None:
        padding = micro.computed_tokens - owner.numel()
        input_ids, position_ids = (pad(each, (0, padding))[None] for each in (batch.tokens[source], position))
        packed = PackedBounds.of([*lengths.tolist(), *([padding] if padding else [])], device)
    else:
        flat = owner * micro.width + position
        input_ids = torch.zeros((len(micro.rows), micro.width), dtype=torch.int64)
        input_ids.view(-1)[flat] = batch.tokens[source]
        position_ids = torch.arange(micro.width)[None]
        packed = None
    chosen = batch.mask[source + 1].nonzero()[:, 0]
    trained = source[chosen] + 1
    return ModelInputs(
        input_ids=to_device(input_ids, device),
        position_ids=to_device(position_ids, device),
        packed=packed,
        predictors=to_device(flat[chosen], device),
        targets=to_device(batch.tokens[trained], device),
        trained=trained,
        sequence_ids=owner[chosen],
    )


def _dummy_inputs(width: int, device: torch.device) -> ModelInputs:
    row, one = (torch.zeros(count, dtype=torch.int64, device=device) for count in (width, 1))
    nothing = torch.zeros(0, dtype=torch.int64)
    return ModelInputs(row[None], row[None], None, one, one, nothing, one)


def predictor_states(model: PreTrainedModel, inputs: ModelInputs) -> Tensor:
    """[N, H]: the last hidden states, after the final norm, at `inputs.predictors`."""
    trunk = model.get_decoder()  # type: ignore[no-untyped-call]
    output = trunk(input_ids=inputs.input_ids, position_ids=inputs.position_ids, use_cache=False, packed=inputs.packed)
    hidden = cast("Tensor", output.last_hidden_state)
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, inputs.predictors)
