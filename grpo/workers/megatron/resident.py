"""What of a Megatron-Core policy is which resource."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from grpo.placement.resources import Resource
from grpo.workers.megatron.optimizer import TrainedStage
from grpo.workers.offload.movable import Tensors


def policy_tensors(trained: TrainedStage, reference: nn.Module | None) -> Mapping[Resource, Tensors]:
    """Masters in float32 are shards of the parameters themselves: they are moved with them, once.

    Moments of Adam, and masters of bfloat16 parameters, are the optimizer state. Gradients are Megatron's flat buffers.
    """

    def parameters() -> list[Tensor]:
        trained.await_weights()
        return list(trained.model.parameters())

    def gradients() -> list[Tensor]:
        return [each.main_grad for each in trained.model.parameters()]

    def optimizer() -> list[Tensor]:
        masters = [master for _, _, master, _ in trained.masters()]
        moments = [value for each in trained.model.parameters() for value in trained.moments(each).values()]
        return [*masters, *moments]

    tensors: dict[Resource, Tensors] = {
        Resource.POLICY_PARAMETERS: parameters,
        Resource.GRADIENTS: gradients,
        Resource.OPTIMIZER_STATE: optimizer,
    }
    if reference is not None:
        tensors[Resource.REFERENCE_PARAMETERS] = lambda: list(reference.parameters())
    return tensors
