"""Masters and optimizer state of a policy in one process, by transformers names: those of `DTensorPolicy.state`.

Imports Megatron-Core: import this module only where it is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grpo.errors import CheckpointError
from grpo.models.megatron.names import Source, Weight
from grpo.workers.megatron.optimizer import MOMENTS, TrainedStage
from grpo.workers.megatron.transfer import StageWeights

MODEL_PREFIX, OPTIMIZER_PREFIX = "model.", "optimizer."


@torch.no_grad()
def load_masters(trained: TrainedStage, weights: StageWeights, source: Source) -> None:
    """Set float32 masters from weights that are wider than the parameters, from which they were made."""
    for name, _, master, part in trained.masters():
        master.copy_(weights.read(name, source).flatten()[part])


def state(trained: TrainedStage, weights: StageWeights) -> dict[str, Tensor]:
    """`model.<name>` of each master and `optimizer.<name>.<moment>`; no moments before the first update."""
    tensors: dict[str, Tensor] = {}
    for name, parameter, master, _ in trained.masters():
        weight = weights.weights[name]
        for hf_name, value in weight.whole([master.view(parameter.shape)]):
            tensors[MODEL_PREFIX + hf_name] = value
        for moment, value in trained.moments(parameter).items():
            for hf_name, part in _split(weight, moment, value, parameter.shape):
                tensors[f"{OPTIMIZER_PREFIX}{hf_name}.{moment}"] = part
    return tensors


@torch.no_grad()
def load_state(trained: TrainedStage, weights: StageWeights, tensors: Mapping[str, Tensor]) -> None:
    """Take back what `state` gave, by copying. Raises CheckpointError if it is of another model; nothing is changed."""
    masters = list(trained.masters())
    names = [hf_name for name, *_ in masters for hf_name in weights.weights[name].names]
    has_moments = any(name.startswith(OPTIMIZER_PREFIX) for name in tensors)
    expected = {MODEL_PREFIX + name for name in names}
    if has_moments:
        expected |= {f"{OPTIMIZER_PREFIX}{name}.{moment}" for name in names for moment in MOMENTS}
    odd = sorted(set(tensors) ^ expected)
    if odd:
        raise CheckpointError(f"the checkpoint is of another model: {len(odd)} names differ, first {odd[0]}")
    loaded = []
    for name, parameter, master, _ in masters:
        weight = weights.weights[name]
        value = _fused(weight, tensors, "model.{}", parameter.shape)
        moments = {
            moment: _fused(weight, tensors, f"optimizer.{{}}.{moment}", parameter.shape).flatten().view(master.shape)
            if moment != "step"
            else tensors[f"{OPTIMIZER_PREFIX}{weight.names[0]}.step"]
            for moment in (MOMENTS if has_moments else ())
        }
        loaded.append((parameter, master, value, moments))
    for parameter, master, value, moments in loaded:
        master.copy_(value.flatten())
        parameter.copy_(value)
        # A copy for each: a step tensor that two parameters share would count twice.
        copies = {
            moment: each.detach().to(master.device, torch.float32, copy=True).reshape(_held_shape(trained, parameter, moment))
            for moment, each in moments.items()
        }
        trained.set_moments(parameter, copies)


def _held_shape(trained: TrainedStage, parameter: torch.nn.Parameter, moment: str) -> torch.Size:
    return torch.Size() if moment == "step" else trained.held_shape(parameter)


def _split(weight: Weight, moment: str, value: Tensor, shape: torch.Size) -> list[tuple[str, Tensor]]:
    if moment == "step":  # one for each, as though they were updated apart
        return [(name, value.clone()) for name in weight.names]
    return list(weight.whole([value.view(shape)]))


def _fused(weight: Weight, tensors: Mapping[str, Tensor], pattern: str, shape: torch.Size) -> Tensor:
    source: dict[str, Any] = {name: tensors[pattern.format(name)] for name in weight.names}
    try:
        value = weight.local(source, 0, 1)
    except (RuntimeError, IndexError) as error:
        raise _of_another_shape(weight, source) from error
    if value.shape != shape:
        raise _of_another_shape(weight, source)
    return value


def _of_another_shape(weight: Weight, source: Mapping[str, Tensor]) -> CheckpointError:
    shapes = ", ".join(f"{name} has shape {list(source[name].shape)} there" for name in weight.names)
    return CheckpointError(f"the checkpoint is of another model: {shapes}, which this model has no place for")
