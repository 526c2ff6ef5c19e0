"""One micro-batch through the model: from sequences end to end to the hidden states that predict the trained tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo.batching.batch import Batch
from grpo.batching.micro_batches import MicroBatch
from grpo.workers.policy.attention import PackedBounds, bounds_of
from grpo.workers.policy.transfer import together


@dataclass(frozen=True)
class ModelInputs:
    """What the model is called with, and where in its output the trained tokens are predicted.

    Padding is on the right, where causal attention never looks, so there is no attention mask. All but `trained`, which
    indexes the batch, are on the model's device.
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
    # In numpy, on one thread: see `together`.
    trained = np.flatnonzero(batch.mask.numpy())
    starts = batch.starts.numpy()
    before_end = np.searchsorted(trained, starts + batch.lengths.numpy())  # trained tokens up to a sequence's end
    last = np.concatenate(([-1], trained))[before_end]
    return torch.from_numpy(np.maximum(last - starts, 0))


def trained_tokens(batch: Batch) -> int:
    """Of the whole batch."""
    return int(np.count_nonzero(batch.mask.numpy()))


@dataclass(frozen=True)
class Layout:
    """A micro-batch's sequences as rows of one width, or end to end in one row, on the host."""

    input_ids: np.ndarray  # [R, W] int64; [1, W] where packed
    position_ids: np.ndarray  # [1, W] int64
    lengths: list[int] | None  # of the sequences of a packed row, its padding one of them
    predictors: np.ndarray  # [N] int64: flat positions in [R, W]
    targets: np.ndarray  # [N] int64
    trained: np.ndarray  # [N] int64
    sequence_ids: np.ndarray  # [N] int64


def laid_out(batch: Batch, micro: MicroBatch, needed: Tensor) -> Layout:
    """The sequences of `micro` as rows of its width, or as one row where it has none.

    `batch` and `needed`, which is `needed_lengths(batch)`, are on the CPU.
    """
    rows = np.asarray(micro.rows)
    lengths = needed.numpy()[rows]
    owner = np.repeat(np.arange(len(rows)), lengths)  # [sum of lengths]
    flat = np.arange(len(owner))
    position = flat - (lengths.cumsum() - lengths)[owner]
    source = batch.starts.numpy()[rows][owner] + position  # in the batch's token dimension
    tokens = batch.tokens.numpy()
    packed = None
    if micro.width is None:
        padding = micro.computed_tokens - len(owner)
        packed = [*lengths.tolist(), *([padding] if padding else [])]
        input_ids, position_ids = (np.pad(each, (0, padding))[None] for each in (tokens[source], position))
    else:
        flat = owner * micro.width + position
        input_ids = np.zeros((len(rows), micro.width), dtype=np.int64)
        input_ids.reshape(-1)[flat] = tokens[source]
        position_ids = np.arange(micro.width)[None]
    chosen = np.flatnonzero(batch.mask.numpy()[source + 1])
    trained = source[chosen] + 1
    return Layout(input_ids, position_ids, packed, flat[chosen], tokens[trained], trained, owner[chosen])


def model_inputs(batch: Batch, micro: MicroBatch, needed: Tensor, device: torch.device) -> ModelInputs:
    """`laid_out` on the device, in one copy that nothing waits for.

    A dummy micro-batch has one token, whose log-prob is made and used for nothing: its `trained` is empty.
    """
    if not micro.rows:
        return _dummy_inputs(micro.computed_tokens, device)
    laid = laid_out(batch, micro, needed)
    arrays = {name: getattr(laid, name) for name in ("input_ids", "position_ids", "predictors", "targets")}
    arrays["sequence_ids"] = laid.sequence_ids
    if laid.lengths is not None:
        arrays["bounds"] = bounds_of(laid.lengths)
    moved = together(arrays, device)
    bounds = moved.pop("bounds", None)
    packed = None if bounds is None or laid.lengths is None else PackedBounds(laid.lengths, bounds.to(torch.int32))
    return ModelInputs(packed=packed, trained=torch.from_numpy(laid.trained), **moved)


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
