"""Megatron's data parallelism and optimizer around a policy stage: AdamW over float32 masters, distributed or not.

Imports Megatron-Core: import this module only where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from torch import Tensor, nn

from grpo.config.schema.policy import DistributedDataParallelCfg, OptimizerKwargs
from grpo.models.megatron.gpt import PolicyGPT

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class TrainedStage:
    """A stage with its gradients and its optimizer."""

    def __init__(
        self,
        model: PolicyGPT,
        *,
        distributed: DistributedDataParallelCfg,
        adamw: OptimizerKwargs,
        max_grad_norm: float | None,
    ) -> None:
        config = model.config
        assert config.calculate_per_token_loss, "DDP would divide gradients by the data parallel size"
        self.is_sharded = distributed.use_distributed_optimizer  # over data parallel ranks; else each has all
        self._overlap_gather = distributed.overlap_param_gather
        self._max_norm = max_grad_norm
        self.module = DistributedDataParallel(
            config=config,
            ddp_config=DistributedDataParallelConfig(
                grad_reduce_in_fp32=True,
                use_distributed_optimizer=distributed.use_distributed_optimizer,
                overlap_grad_reduce=distributed.overlap_grad_reduce,
                overlap_param_gather=distributed.overlap_param_gather,
            ),
            module=model,
        )
        if distributed.overlap_grad_reduce:
            config.no_sync_func = self.module.no_sync
        config.finalize_model_grads_func = _finalize
        self._optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=adamw.lr,
                weight_decay=adamw.weight_decay,
                adam_beta1=adamw.betas[0],
                adam_beta2=adamw.betas[1],
                adam_eps=adamw.eps,
                params_dtype=config.params_dtype,
                bf16=config.bf16,
                use_distributed_optimizer=distributed.use_distributed_optimizer,
                clip_grad=0.0,  # done here, where a norm that is not finite can be refused
            ),
            [self.module],
            config_overrides={},  # every parameter decays, as with torch.optim.AdamW
            use_gloo_process_groups=False,
        )
        for group in self._optimizer.param_groups:
            if isinstance(self._inner, torch.optim.AdamW):
                group["fused"] = True

    @property
    def model(self) -> PolicyGPT:
        module = self.module.module
        assert isinstance(module, PolicyGPT)
        return module

    @property
    def _inner(self) -> Any:
        return self._optimizer.chained_optimizers[0].optimizer

    def zero_grad(self) -> None:
        self.module.zero_grad_buffer()
        self._optimizer.zero_grad()

    def clip(self) -> float:
        """Make the summed gradients ready and scale them down to the largest norm; the norm before that.

        It is of the whole model, replicated parameters counted once. Gradients are left as they are where it is not
        finite.
        """
        found_inf = self._optimizer.prepare_grads()
        assert not found_inf, "there is no loss scale to look for"
        norm = float(self._optimizer.get_grad_norm())
        if self._max_norm is not None and self._max_norm < norm < float("inf"):
            for each in self._optimizer.chained_optimizers:
                clip_grad_by_total_norm_fp32(each.get_parameters(), max_norm=self._max_norm, total_norm=norm)
        return norm

    def step(self, learning_rate: float) -> None:
        """Update masters and weights with the gradients that `clip` made ready."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step_with_ready_grads()

    def non_finite(self) -> list[str]:
        """Names of this rank's parameters whose gradients hold a NaN or an infinity."""
        return [name for name, each in self.model.named_parameters() if not each.main_grad.isfinite().all()]

    def await_weights(self) -> None:
        """Have all weights gathered after an update whose gathering overlaps the next pass."""
        if self._overlap_gather:
            self.module.start_param_sync(force_sync=True)

    def await_weight(self, weight: Tensor) -> None:
        """The same for one that is used outside its module."""
        if self._overlap_gather:
            self.module.param_to_bucket_group[weight].finish_param_sync()

    def masters(self) -> Iterator[tuple[str, nn.Parameter, Tensor, slice]]:
        """Name, parameter, its float32 master (flat) on this rank and the flat part of the parameter that it is.

        A parameter of which this rank has no part is left out.
        """
        for name, parameter in self.model.named_parameters():
            master, part = self._master(parameter)
            if master is not None:
                yield name, parameter, master, part

    def _master(self, parameter: nn.Parameter) -> tuple[Tensor | None, slice]:
        whole = slice(0, parameter.numel())
        held = self._held(parameter)
        if held is None:
            return None, slice(0, 0)
        if held.numel() == parameter.numel():
            return held.detach().view(-1), whole
        extent = self._optimizer.chained_optimizers[0]._get_model_param_range_map(parameter)["param"]  # noqa: SLF001
        return held.detach().view(-1), slice(extent.start, extent.end)

    def _held(self, parameter: nn.Parameter) -> Tensor | None:
        """What the inner optimizer updates for a parameter: itself, its float32 copy, or the shard of either here."""
        own: Tensor | None = getattr(parameter, "main_param", None)
        if own is not None:
            return own
        outer = self._optimizer.chained_optimizers[0]
        places = getattr(outer, "model_param_group_index_map", None)
        if places is None:
            return parameter
        if parameter not in places:
            return None
        group, order = places[parameter]
        shard: Tensor = self._inner.param_groups[group]["params"][order]
        return shard

    def held_shape(self, parameter: nn.Parameter) -> torch.Size:
        """Of what the inner optimizer updates for a parameter."""
        held = self._held(parameter)
        assert held is not None
        return held.shape

    def moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Adam's state of a parameter, the tensors being the live ones; empty before the first update."""
        held = self._held(parameter)
        return (
            {}
            if held is None
            else {name: value for name, value in self._inner.state.get(held, {}).items() if name in MOMENTS}
        )

    def set_moments(self, parameter: nn.Parameter, values: dict[str, Tensor]) -> None:
        """Replace Adam's state of a parameter; empty forgets it."""
        held = self._held(parameter)
        assert held is not None
        self._inner.state.pop(held, None)
        if values:
            self._inner.state[held] = values


def _finalize(model: list[nn.Module], _num_tokens: Tensor | None, *args: Any, **kwargs: Any) -> None:
    """Sum gradients over ranks as Megatron does, without its division by tokens: the objective has divided."""
    finalize: Callable[..., None] = finalize_model_grads
    finalize(model, None, *args, **kwargs)
