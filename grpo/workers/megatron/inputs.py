"""One micro-batch as Megatron's model takes it, of a width that the tensor parallel ranks can share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grpo.batching.batch import Batch
from grpo.batching.micro_batches import MicroBatch, round_up
from grpo.models.megatron.gpt import PackedRow
from grpo.workers.policy.attention import bounds_of
from grpo.workers.policy.forward import Layout, laid_out
from grpo.workers.policy.transfer import together


class InputStream:
    """Micro-batches that are laid out when their turn comes, so that the device has work meanwhile; `computed` counts.

    It is gone through once.
    """

    def __init__(self, makers: Sequence[Callable[[], MegatronInputs]]) -> None:
        self._makers = makers
        self.computed = 0  # tokens of those that were laid out

    def __len__(self) -> int:
        return len(self._makers)

    def __iter__(self) -> Iterator[MegatronInputs]:
        for make in self._makers:
            micro = make()
            self.computed += micro.input_ids.numel()
            yield micro


@dataclass(frozen=True)
class MegatronInputs:
    """All but `trained` and `rows` are on the model's device."""

    input_ids: Tensor  # [R, W] int64
    positions: Tensor  # [W] int64
    packed: PackedRow | None
    predictors: Tensor  # [N] int64: flat positions in [W, R] whose hidden state predicts a trained token
    targets: Tensor  # [N] int64
    trained: Tensor  # [N] int64: their positions in the batch's token dimension
    sequence_ids: Tensor  # [N] int64: which of `rows` each belongs to
    rows: list[int]  # the batch's sequences that are in it


def megatron_inputs(
    batch: Batch, micro: MicroBatch, needed: Tensor, device: torch.device, *, multiple: int, thd: bool
) -> MegatronInputs:
    """Lay the sequences out as `model_inputs` does, and widen to a multiple of `multiple`.

    What is added to a packed row is a sequence of its own. `thd`: the layers are Transformer Engine's.
    """
    laid = laid_out(batch, micro, needed)
    count, width = laid.input_ids.shape
    extra = round_up(width, multiple) - width
    row, column = laid.predictors // width, laid.predictors % width
    lengths = None if laid.lengths is None else [*laid.lengths, *([extra] if extra else [])]
    arrays = {
        "input_ids": np.pad(laid.input_ids, ((0, 0), (0, extra))),
        "positions": _positions(laid, extra),
        "predictors": column * count + row,
        "targets": laid.targets,
        "sequence_ids": laid.sequence_ids,
        **({} if lengths is None else {"bounds": bounds_of(lengths)}),
    }
    moved = together(arrays, device)
    bounds = moved.pop("bounds", None)
    packed = None if lengths is None or bounds is None else _packed(lengths, bounds.to(torch.int32), thd=thd)
    return MegatronInputs(packed=packed, trained=torch.from_numpy(laid.trained), rows=micro.rows, **moved)


def idle_inputs(device: torch.device, *, multiple: int) -> MegatronInputs:
    """Nothing to train: for a rank without sequences, whose collectives the others wait for."""
    empty = torch.zeros(0, dtype=torch.int64)
    return MegatronInputs(
        input_ids=torch.zeros(1, multiple, dtype=torch.int64, device=device),
        positions=torch.arange(multiple, device=device),
        packed=None,
        predictors=empty.to(device),
        targets=empty.to(device),
        trained=empty,
        sequence_ids=empty.to(device),
        rows=[],
    )


def _positions(laid: Layout, extra: int) -> np.ndarray:
    given = laid.position_ids[0]
    start = 0 if laid.lengths is not None else len(given)
    return np.concatenate([given, np.arange(start, start + extra)])


def _packed(lengths: list[int], bounds: Tensor, *, thd: bool) -> PackedRow:
    longest = max(lengths)
    return PackedRow(
        qkv_format="thd" if thd else "sbhd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        lengths=lengths,
    )
