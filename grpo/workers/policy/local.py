"""A policy model in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo.algorithm.metrics import MetricSums
from grpo.checkpoint.pieces import Piece
from grpo.config.schema import Policy
from grpo.refit.manifest import Weight
from grpo.refit.writing import Places, copied
from grpo.workers.policy.architecture import checkpoint_activations
from grpo.workers.policy.logprob_model import LogprobModel
from grpo.workers.policy.optimizer import OPTIMIZERS
from grpo.workers.policy.plan import BatchPlan, Ranks
from grpo.workers.policy.precision import RoundedCopy


class LocalExecution:
    """The whole model on one device: nothing is gathered and nothing reduced."""

    ranks = Ranks()

    def __init__(
        self, model: PreTrainedModel, reference: PreTrainedModel | None, policy: Policy, device: torch.device
    ) -> None:
        dtype = getattr(torch, policy.precision)
        self.masters = model.to(device).eval()  # type: ignore[arg-type]
        self._rounded = None if dtype == torch.float32 else RoundedCopy(self.masters, dtype)
        compute = self.masters if self._rounded is None else self._rounded.module
        if policy.dtensor_cfg.activation_checkpointing:
            checkpoint_activations(compute)
        head = None if self._rounded is None else self._rounded.head_gradient
        self.compute = LogprobModel.of(compute, policy, head)
        self.reference = None if reference is None else LogprobModel.of(frozen(reference.to(device), dtype), policy)  # type: ignore[arg-type]
        adamw = policy.optimizer.kwargs
        self.optimizer = OPTIMIZERS[policy.optimizer.name](
            self.masters, lr=adamw.lr, betas=adamw.betas, eps=adamw.eps, weight_decay=adamw.weight_decay
        )

    def adding_gradients(self) -> AbstractContextManager[Callable[[], None]]:
        """Around the micro-batches of an update. What it gives is called after the backward pass of each."""
        return contextlib.nullcontext(nothing)

    def weights_changed(self) -> None:
        if self._rounded is not None:
            self._rounded.refresh()

    def pass_done(self, _model: LogprobModel) -> None:
        """After a pass without gradients."""

    def total_metrics(self, own: MetricSums, _plan: BatchPlan) -> MetricSums:
        return own

    def total_tokens(self, values: Tensor) -> Tensor:
        return values

    def described_weights(self) -> list[Weight]:
        """What `whole_weights` gives."""
        return [Weight.of(name, each) for name, each in self.compute.model.named_parameters()]

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """In the compute dtype; the live tensors."""
        for name, parameter in self.compute.model.named_parameters():
            yield name, parameter.detach()

    def write_weights(self, buckets: Iterable[Places]) -> Iterator[None]:
        """As `StatefulPolicy.write_weights`."""
        return copied(self.whole_weights(), buckets)

    def pieces(self, tensors: Mapping[str, Tensor]) -> list[Piece]:
        """What this rank is to write of them; the live tensors."""
        return [Piece.whole(name, each) for name, each in tensors.items()]

    def take(self, parameter: Tensor, value: Any) -> None:
        """Copy this rank's part of a whole tensor, or of one that is read when it is sliced, into `parameter`."""
        parameter.copy_(value[...])


def nothing() -> None:
    """Gradients lie where they are added up."""


def frozen(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Without gradients, its parameters in `dtype`; buffers keep theirs."""
    model.eval()  # type: ignore[no-untyped-call]
    model.requires_grad_(requires_grad=False)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model
