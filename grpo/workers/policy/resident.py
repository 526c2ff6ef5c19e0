"""What of a PyTorch policy is which resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from grpo.placement.resources import Resource
from grpo.workers.offload.movable import Tensors

if TYPE_CHECKING:
    from grpo.workers.policy.local import LocalExecution
    from grpo.workers.policy.sharded import ShardedExecution


def policy_tensors(execution: LocalExecution | ShardedExecution) -> Mapping[Resource, Tensors]:
    """The parameters are those that passes read; masters that are apart from them go with the optimizer state.

    Between updates there are no gradients: an update that ends frees its own.
    """

    def parameters() -> list[Tensor]:
        execution.pass_done(execution.compute)
        return list(execution.compute.model.parameters())

    def gradients() -> list[Tensor]:
        execution.optimizer.zero_grad()  # of an update that failed
        return []

    def optimizer() -> list[Tensor]:
        return [*execution.masters.parameters(), *execution.optimizer.state().values()]

    tensors: dict[Resource, Tensors] = {
        Resource.POLICY_PARAMETERS: parameters,
        Resource.GRADIENTS: gradients,
        Resource.OPTIMIZER_STATE: optimizer,
    }
    reference = execution.reference
    if reference is not None:

        def reference_parameters() -> list[Tensor]:
            execution.pass_done(reference)
            return list(reference.model.parameters())

        tensors[Resource.REFERENCE_PARAMETERS] = reference_parameters
    return tensors
