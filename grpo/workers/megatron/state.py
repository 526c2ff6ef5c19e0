"""Masters and optimizer state of a policy by transformers names, those of `DTensorPolicy.state`, in any layout.

What a rank holds is a flat part of a fused parameter of its tensor parallel and pipeline rank. Each is cut into boxes
of transformers weights, so that every other layout, and the other backend, finds what it needs.

Imports Megatron-Core: import this module only where it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from grpo.checkpoint.pieces import Piece, flat_boxes
from grpo.errors import CheckpointError
from grpo.models.megatron.names import Replicated, Source
from grpo.workers.megatron.optimizer import MOMENTS, TrainedStage
from grpo.workers.megatron.transfer import StageWeights

MODEL_PREFIX, OPTIMIZER_PREFIX = "model.", "optimizer."


@torch.no_grad()
def load_masters(trained: TrainedStage, weights: StageWeights, source: Source) -> None:
    """Set float32 masters from weights that are wider than the parameters, from which they were made."""
    for name, _, master, part in trained.masters():
        master.copy_(weights.read(name, source).flatten()[part])


def state(trained: TrainedStage, weights: StageWeights) -> list[Piece]:
    """`model.<name>` of masters and `optimizer.<name>.<moment>`, this rank's; no moments before the first update.

    Over all ranks each element comes once. The pieces are the live tensors.
    """
    pieces: list[Piece] = []
    for index, (name, parameter, master, part) in enumerate(trained.masters()):
        if not _writes(trained, weights, name, index):
            continue
        boxes = list(_boxes(weights, name, parameter, part))
        moments = trained.moments(parameter)
        for box in boxes:
            pieces.append(box.piece(MODEL_PREFIX + box.name, master))
            pieces += [
                box.piece(f"{OPTIMIZER_PREFIX}{box.name}.{moment}", value.view(-1))
                for moment, value in moments.items()
                if moment != "step"
            ]
        if "step" in moments and part.start == 0 and weights.place.tensor_rank == 0:
            # One for each weight, as though they were updated apart.
            steps = [f"{OPTIMIZER_PREFIX}{each}.step" for each in weights.weights[name].names]
            pieces += [Piece.whole(each, moments["step"].clone()) for each in steps]
    return pieces


@torch.no_grad()
def load_state(
    trained: TrainedStage, weights: StageWeights, tensors: Mapping[str, Any], *, optimizer: bool = True
) -> None:
    """Take back what all ranks' `state` gave: whole tensors, or stored ones of which this rank reads its part.

    Raises CheckpointError if it is of another model; nothing is changed then.
    """
    has_moments = any(name.startswith(OPTIMIZER_PREFIX) for name in tensors)
    _check(weights, tensors, has_moments=has_moments)
    plain = {name.removeprefix(MODEL_PREFIX): each for name, each in tensors.items() if name.startswith(MODEL_PREFIX)}
    for name, parameter in trained.model.named_parameters():
        parameter.copy_(weights.read(name, plain))
    for name, parameter, master, part in trained.masters():
        boxes = list(_boxes(weights, name, parameter, part))
        _fill(master, boxes, MODEL_PREFIX, "", tensors)
        moments: dict[str, Tensor] = {}
        if has_moments and optimizer:
            for moment in ("exp_avg", "exp_avg_sq"):
                moments[moment] = torch.zeros_like(master, dtype=torch.float32)
                _fill(moments[moment], boxes, OPTIMIZER_PREFIX, f".{moment}", tensors)
                moments[moment] = moments[moment].view(trained.held_shape(parameter))
            # One for each parameter: a step tensor that two share would count twice.
            step = tensors[f"{OPTIMIZER_PREFIX}{weights.weights[name].names[0]}.step"][...]
            moments["step"] = step.detach().to(master.device, torch.float32, copy=True)
        trained.set_moments(parameter, moments)


@dataclass(frozen=True)
class _Box:
    """A box of a transformers weight, and the flat elements of what this rank holds that it is."""

    name: str
    shape: tuple[int, ...]  # of the whole weight
    start: tuple[int, ...]
    stop: tuple[int, ...]
    local: slice

    def of(self, held: Tensor) -> Tensor:
        return held[self.local].view([end - first for first, end in zip(self.start, self.stop, strict=True)])

    def piece(self, name: str, held: Tensor) -> Piece:
        return Piece(name, self.shape, self.start, self.of(held.detach()))


def _boxes(weights: StageWeights, name: str, parameter: nn.Parameter, part: slice) -> Iterator[_Box]:
    """Of the flat part `part` of a parameter."""
    width = parameter[0].numel()
    for rows in weights.rows(name):
        first, end = rows.local * width, (rows.local + rows.count) * width
        for flat, flat_end, (row, last), (left, right) in flat_boxes(
            max(first, part.start), min(end, part.stop), width
        ):
            start, stop = [rows.start + row - rows.local], [rows.start + last - rows.local]
            if parameter.ndim > 1:
                start, stop = [*start, rows.column + left], [*stop, rows.column + right]
            shape = weights.shape(rows.name)
            yield _Box(rows.name, shape, tuple(start), tuple(stop), slice(flat - part.start, flat_end - part.start))


def _writes(trained: TrainedStage, weights: StageWeights, name: str, index: int) -> bool:
    """Whether this rank writes what it holds of a parameter, and no other that has the same."""
    if weights.is_copy(name):
        return False
    replicated = isinstance(weights.weights[name], Replicated)
    if replicated and weights.place.tensor_rank > 0:
        return False
    return trained.is_sharded or index % weights.place.data_size == weights.place.data_rank


def _fill(held: Tensor, boxes: list[_Box], prefix: str, suffix: str, tensors: Mapping[str, Any]) -> None:
    held.zero_()  # what pads the vocabulary is in no box
    for box in boxes:
        box.of(held).copy_(tensors[f"{prefix}{box.name}{suffix}"][tuple(map(slice, box.start, box.stop))])


def _check(weights: StageWeights, tensors: Mapping[str, Any], *, has_moments: bool) -> None:
    names = weights.names_of_model()
    expected = {MODEL_PREFIX + name for name in names}
    if has_moments:
        expected |= {f"{OPTIMIZER_PREFIX}{name}.{moment}" for name in names for moment in MOMENTS}
    odd = sorted(set(tensors) ^ expected)
    if odd:
        raise CheckpointError(f"the checkpoint is of another model: {len(odd)} names differ, first {odd[0]}")
    for name in names:
        shape = weights.shape(name)
        given = {MODEL_PREFIX + name: shape}
        if has_moments:
            own = {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
            given |= {f"{OPTIMIZER_PREFIX}{name}.{moment}": each for moment, each in own.items()}
        for stored, wanted in given.items():
            if tuple(tensors[stored].shape) != wanted:
                raise CheckpointError(
                    f"the checkpoint is of another model: {stored} has shape {list(tensors[stored].shape)} there and "
                    f"{list(wanted)} here"
                )
