"""One micro-batch as Megatron's model takes it, of a width that the tensor parallel ranks can share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo.batching.batch import Batch
from grpo.batching.micro_batches import MicroBatch, round_up
from grpo.models.megatron.gpt import PackedRow
from grpo.workers.policy.attention import PackedBounds
from grpo.workers.policy.forward import ModelInputs, model_inputs
from grpo.workers.policy.transfer import to_device


@dataclass(frozen=True)
class MegatronInputs:
    """All but `trained`, `rows` and `sequence_ids` are on the model's device."""

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
    laid = model_inputs(batch, micro, needed, torch.device("cpu"))
    width = laid.input_ids.shape[1]
    extra = round_up(width, multiple) - width
    row, column = laid.predictors // width, laid.predictors % width
    return MegatronInputs(
        input_ids=to_device(pad(laid.input_ids, (0, extra)), device),
        positions=to_device(_positions(laid, extra), device),
        packed=None if laid.packed is None else _packed(laid.packed.lengths, extra, device, thd=thd),
        predictors=to_device(column * laid.input_ids.shape[0] + row, device),
        targets=to_device(laid.targets, device),
        trained=laid.trained,
        sequence_ids=laid.sequence_ids,
        rows=micro.rows,
    )


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
        sequence_ids=empty,
        rows=[],
    )


def _positions(laid: ModelInputs, extra: int) -> Tensor:
    given = laid.position_ids[0]
    start = 0 if laid.packed is not None else given.numel()
    return torch.cat([given, torch.arange(start, start + extra)])


def _packed(lengths: list[int], extra: int, device: torch.device, *, thd: bool) -> PackedRow:
    bounds = PackedBounds.of([*lengths, extra] if extra else lengths, device)
    longest = max(bounds.lengths)
    return PackedRow(
        qkv_format="thd" if thd else "sbhd",
        cu_seqlens_q=bounds.cumulative,
        cu_seqlens_kv=bounds.cumulative,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        lengths=bounds.lengths,
    )
