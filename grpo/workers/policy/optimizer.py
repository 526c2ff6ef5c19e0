"""AdamW over the master weights, with names that survive a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grpo.errors import CheckpointError

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class NamedAdamW:
    """torch.optim.AdamW whose state goes in and out by parameter name."""

    def __init__(
        self, module: nn.Module, *, lr: float, betas: Sequence[float], eps: float, weight_decay: float
    ) -> None:
        self._parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
        self._peak = lr
        self._adamw = torch.optim.AdamW(
            list(self._parameters.values()),
            lr=lr,
            betas=(betas[0], betas[1]),
            eps=eps,
            weight_decay=weight_decay,
            fused=True,
        )

    def norm(self) -> Tensor:
        """The global 2-norm of the gradients, on the device: nothing waits for it."""
        return torch.nn.utils.get_total_norm(self._gradients())

    def clip(self, norm: float, max_norm: float | None) -> None:
        """Scale gradients of this norm down to `max_norm` where it is above that."""
        if max_norm is not None and norm > max_norm:
            torch._foreach_mul_(self._gradients(), max_norm / (norm + 1e-6))

    def step(self, learning_rate: float) -> None:
        """Update the weights and let go of the gradients."""
        self._adamw.param_groups[0]["lr"] = learning_rate
        self._adamw.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        self._adamw.zero_grad(set_to_none=True)

    def non_finite(self) -> list[str]:
        """Names of the parameters whose gradients hold a NaN or an infinity."""
        return [
            name for name, each in self._parameters.items() if each.grad is not None and not each.grad.isfinite().all()
        ]

    def _gradients(self) -> list[Tensor]:
        """Those on this rank, of the parameters that have one."""
        return [each.grad for each in self._parameters.values() if each.grad is not None]

    def state(self) -> dict[str, Tensor]:
        """`<parameter>.<moment>` for each moment; empty before the first step. The tensors are the live ones."""
        return {
            f"{name}.{moment}": self._adamw.state[parameter][moment]
            for name, parameter in self._parameters.items()
            if parameter in self._adamw.state
            for moment in MOMENTS
        }

    def load_state(self, tensors: Mapping[str, Any]) -> None:
        """Take back what `state` gave, from tensors or stored ones; nothing: as before the first step.

        Raises:
            CheckpointError: a moment is missing, unknown or of another shape than its parameter.
        """
        expected = {f"{name}.{moment}" for name in self._parameters for moment in MOMENTS}
        if tensors and set(tensors) != expected:
            odd = sorted(set(tensors) ^ expected)
            raise CheckpointError(f"the optimizer state is of another model: {len(odd)} names differ, first {odd[0]}")
        loaded: dict[Tensor, dict[str, Tensor]] = {
            parameter: {moment: self._moment(tensors, name, moment) for moment in MOMENTS}
            for name, parameter in self._parameters.items()
            if tensors
        }
        self._adamw.state.clear()
        self._adamw.state.update(loaded)

    def _moment(self, tensors: Mapping[str, Any], name: str, moment: str) -> Tensor:
        parameter, value = self._parameters[name], tensors[f"{name}.{moment}"]
        self._check_shape(name, moment, value, torch.Size() if moment == "step" else parameter.shape)
        # A copy: a step tensor that two parameters share would count twice.
        own: Tensor = value[...].detach().to(parameter.device, torch.float32, copy=True)
        return own

    def _check_shape(self, name: str, moment: str, value: Any, shape: torch.Size) -> None:
        if value.shape != shape:
            raise CheckpointError(
                f"the optimizer state is of another model: {name}.{moment} has shape {list(value.shape)} there and "
                f"{list(shape)} here"
            )


OPTIMIZERS = {"torch.optim.AdamW": NamedAdamW}
