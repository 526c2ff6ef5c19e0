"""Masters and optimizer state of a policy in one process, by transformers names: those of `DTensorPolicy.state`.

Imports Megatron-Core: import this module only where it is installed.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    plain = {name.removeprefix(MODEL_PREFIX): each for name, each in tensors.items() if name.startswith(MODEL_PREFIX)}
    sources = {"": plain} | {moment: _moment(tensors, moment, names) for moment in (MOMENTS if has_moments else ())}
    for name, *_ in masters:
        for moment in sources.keys() - {"step"}:
            weights.check_shapes(name, sources[moment], CheckpointError)
    for name, parameter, master, _ in masters:
        weight = weights.weights[name]
        value = weight.local(plain, 0, 1)
        master.copy_(value.flatten())
        parameter.copy_(value)
        moments = {moment: weight.local(sources[moment], 0, 1) for moment in sources.keys() & {"exp_avg", "exp_avg_sq"}}
        held = trained.held_shape(parameter)
        # A copy for each parameter: a step tensor that two share would count twice.
        copies = {key: _copy(each, master.device).view(held) for key, each in moments.items()}
        if has_moments:
            copies["step"] = _copy(sources["step"][weight.names[0]], master.device)
        trained.set_moments(parameter, copies)


def _moment(tensors: Mapping[str, Tensor], moment: str, names: list[str]) -> dict[str, Tensor]:
    return {name: tensors[f"{OPTIMIZER_PREFIX}{name}.{moment}"] for name in names}


def _copy(value: Tensor, device: torch.device) -> Tensor:
    return value.detach().to(device, torch.float32, copy=True)


def _split(weight: Weight, moment: str, value: Tensor, shape: torch.Size) -> list[tuple[str, Tensor]]:
    if moment == "step":  # one for each, as though they were updated apart
        return [(name, value.clone()) for name in weight.names]
    return list(weight.whole([value.view(shape)]))
