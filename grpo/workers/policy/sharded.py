"""A policy model over many ranks: cut by tensor parallelism, its parameters sharded over data parallel ranks (FSDP2).

The forward pass computes in the policy's precision from float32 masters. Gradients are summed over data parallel ranks
in float32 and never divided: the loss has the denominators of the whole batch in it already.

With `policy.dtensor_cfg.cpu_offload` parameters, gradients and optimizer state lie on the CPU, where the optimizer
runs; a layer's parameters are copied to the device while it computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from grpo.algorithm.metrics import MetricSums
from grpo.checkpoint.pieces import Piece
from grpo.config.schema import Policy
from grpo.models.parallel_plans import shard_range, tensor_parallel
from grpo.models.sharded_loading import Reader, restore_buffers
from grpo.refit.manifest import Weight
from grpo.refit.writing import Places
from grpo.workers.policy.architecture import checkpoint_activations
from grpo.workers.policy.gathering import gathered, tensor_parallel_dim
from grpo.workers.policy.host_gradients import HostGradients
from grpo.workers.policy.local import frozen, nothing
from grpo.workers.policy.logprob_model import LogprobModel, attention_width, matrix_parameters
from grpo.workers.policy.optimizer import NamedAdamW
from grpo.workers.policy.parallel import ParallelContext
from grpo.workers.policy.plan import BatchPlan, Ranks
from grpo.workers.policy.reduction import reduce_metrics, sum_tokens


class ShardedExecution:
    """The same as `LocalExecution` over the ranks of a context. Every method but `take` is called by all of them."""

    def __init__(
        self,
        model: PreTrainedModel,
        reference: PreTrainedModel | None,
        policy: Policy,
        device: torch.device,
        parallel: ParallelContext,
    ) -> None:
        """The models are the same on every rank, on the CPU, or without values (meta device): then `fill` follows."""
        self._parallel, self._device = parallel, device
        self._dtype = getattr(torch, policy.precision)
        self.ranks = Ranks(parallel.dp_rank, parallel.dp_size, matrix_parameters(model), attention_width(model))
        if policy.dtensor_cfg.activation_checkpointing:
            checkpoint_activations(model)
        model.eval()  # type: ignore[no-untyped-call]
        self.masters = model
        self.compute = self._shard(model, policy)
        self._host_gradients = HostGradients(self.masters.parameters()) if parallel.cpu_offload else None
        self.reference = None if reference is None else self._shard(frozen(reference, self._dtype), policy)
        adamw = policy.optimizer.kwargs
        self.optimizer = ShardedAdamW(
            self.masters, parallel, lr=adamw.lr, betas=adamw.betas, eps=adamw.eps, weight_decay=adamw.weight_decay
        )

    @torch.no_grad()
    def fill(self, model: LogprobModel, weights: Iterable[tuple[str, Reader]]) -> None:
        """Give a model without values those of `weights`, of which this rank reads its part alone."""
        inner = model.model
        model.to_empty(device="cpu" if self._parallel.cpu_offload else self._device)
        if inner.config.tie_word_embeddings:
            inner.get_output_embeddings().weight = inner.get_input_embeddings().weight  # type: ignore[no-untyped-call]
        restore_buffers(inner, self._device)
        parameters = dict(inner.named_parameters())
        for name, read in weights:
            parameter = cast("DTensor", parameters.pop(name))
            part = own_part(parameter, self._parallel)
            if all(each.stop > each.start for each in part):
                parameter.to_local().copy_(read(part))
        assert not parameters, f"without values: {sorted(parameters)}"

    def adding_gradients(self) -> AbstractContextManager[Callable[[], None]]:
        """See `LocalExecution.adding_gradients`."""
        return contextlib.nullcontext(nothing) if self._host_gradients is None else self._host_gradients.adding()

    def weights_changed(self) -> None:
        """Parameters are gathered anew in every pass."""

    def pass_done(self, model: LogprobModel) -> None:
        """Give back what a pass without gradients has gathered."""
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def total_metrics(self, own: MetricSums, plan: BatchPlan) -> MetricSums:
        return reduce_metrics(own, plan.places, plan.sequences, self._parallel.dp_group)

    def total_tokens(self, values: Tensor) -> Tensor:
        return sum_tokens(values, self._device, self._parallel.dp_group)

    def described_weights(self) -> list[Weight]:
        """What `whole_weights` gives."""
        dtype = str(self._dtype).removeprefix("torch.")
        return [Weight(name, tuple(each.shape), dtype) for name, each in self.masters.named_parameters()]

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """In the compute dtype, gathered one at a time: every rank takes them all."""
        for name, parameter in self._weights():
            whole = torch.empty(parameter.shape, dtype=self._dtype, device=self._device)
            for _ in gathered([[(parameter, whole)]], self._parallel):
                yield name, whole

    def write_weights(self, buckets: Iterable[Places]) -> Iterator[None]:
        """As `StatefulPolicy.write_weights`: a bucket is one message, and lies where it is wanted when it has come."""
        held = dict(self._weights())
        wanted = ([(held[weight.name], target) for weight, target in places] for places in buckets)
        return gathered(wanted, self._parallel)

    def _weights(self) -> Iterator[tuple[str, DTensor]]:
        for name, parameter in self.masters.named_parameters():
            yield name, cast("DTensor", parameter.detach())

    def pieces(self, tensors: Mapping[str, Tensor]) -> list[Piece]:
        """What this rank is to write of them: its own part, and what all have from the first alone. Live, local."""
        first = self._parallel.dp_rank == self._parallel.tp_rank == 0
        found = []
        for name, each in tensors.items():
            if not isinstance(each, DTensor):
                found += [Piece.whole(name, each)] if first else []
            elif self._parallel.tp_rank == 0 or tensor_parallel_dim(each) is not None:
                part, local = own_part(each, self._parallel), each.to_local()
                if local.numel():
                    found.append(Piece(name, tuple(each.shape), tuple(cut.start for cut in part), local))
        return found

    def take(self, parameter: Tensor, value: Any) -> None:
        assert isinstance(parameter, DTensor)
        parameter.to_local().copy_(value[own_part(parameter, self._parallel)])

    def _shard(self, model: PreTrainedModel, policy: Policy) -> LogprobModel:
        parallel = self._parallel
        if parallel.tp_size > 1:
            tensor_parallel(model, parallel.mesh["tp"], sequence_parallel=parallel.sequence_parallel)
        root = LogprobModel.of(model, policy)
        compute = None if self._dtype == torch.float32 else self._dtype
        precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
        mesh, freed = parallel.mesh["dp"], parallel.dp_size > 1 or parallel.cpu_offload
        kept: OffloadPolicy = OffloadPolicy()
        if parallel.cpu_offload:
            kept = CPUOffloadPolicy(pin_memory=self._device.type == "cuda")
        for layer in cast("nn.ModuleList", model.get_decoder().layers):  # type: ignore[no-untyped-call]
            fully_shard(layer, mesh=mesh, mp_policy=precision, offload_policy=kept, reshard_after_forward=freed)
        fully_shard(root, mesh=mesh, mp_policy=precision, offload_policy=kept, reshard_after_forward=False)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(enable=True)
        return root


class ShardedAdamW(NamedAdamW):
    """`NamedAdamW` over DTensors: every rank updates its own part, and the norm is that of the whole gradient."""

    def __init__(
        self,
        module: nn.Module,
        parallel: ParallelContext,
        *,
        lr: float,
        betas: Sequence[float],
        eps: float,
        weight_decay: float,
    ) -> None:
        super().__init__(module, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self._parallel = parallel

    def norm(self) -> Tensor:
        """As in one process; a parameter that tensor parallel ranks have copies of counts once."""
        first = self._parallel.tp_rank == 0
        gradients = (cast("DTensor", each.grad) for each in self._parameters.values() if each.grad is not None)
        own = [each.to_local() for each in gradients if first or tensor_parallel_dim(each) is not None]
        total = torch.zeros((), dtype=torch.float64, device=self._parallel.device)
        if own:
            total = torch.nn.utils.get_total_norm(own).to(total).square()
        dist.all_reduce(total, group=self._parallel.world_group)
        return total.sqrt()

    def non_finite(self) -> list[str]:
        """Names of the parameters with a NaN or an infinity in this rank's part of their gradients."""
        return [
            name
            for name, each in self._parameters.items()
            if each.grad is not None and not cast("DTensor", each.grad).to_local().isfinite().all()
        ]

    def _gradients(self) -> list[Tensor]:
        return [cast("DTensor", each).to_local() for each in super()._gradients()]

    def _moment(self, tensors: Mapping[str, Any], name: str, moment: str) -> Tensor:
        if moment == "step":
            return super()._moment(tensors, name, moment)
        value, parameter = tensors[f"{name}.{moment}"], cast("DTensor", self._parameters[name])
        self._check_shape(name, moment, value, parameter.shape)
        own = cast("DTensor", torch.zeros_like(parameter))
        own.to_local().copy_(value[own_part(parameter, self._parallel)])
        return own


def own_part(parameter: DTensor, parallel: ParallelContext) -> tuple[slice, ...]:
    """Where this rank's part lies in the whole tensor: first cut by tensor parallel ranks, then its rows."""
    part = [(0, size) for size in parameter.shape]
    cut = tensor_parallel_dim(parameter)
    if cut is not None:
        part[cut] = shard_range(parameter.shape[cut], parallel.tp_rank, parallel.tp_size)
    first, stop = part[0]
    start, end = shard_range(stop - first, parallel.dp_rank, parallel.dp_size)
    part[0] = (first + start, first + end)
    return tuple(slice(*each) for each in part)
