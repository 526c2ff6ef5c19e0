"""A training loop in plain Megatron-Core: what its policy worker is measured against.

The same layers and attention as the worker; Megatron's own DDP, distributed optimizer and schedule, called as its own
training loop calls them. Imports Megatron-Core: import this module only where it is installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from benchmarks.gpu.bare import clipped_loss
from benchmarks.gpu.settings import ADAMW, MAX_GRAD_NORM
from benchmarks.gpu.work import Pack
from grpo.models.megatron.gpt import PackedRow, PolicyGPT, layer_specs
from grpo.models.megatron.settings import ParallelSizes, transformer_config
from grpo.models.megatron.shape import ModelShape
from grpo.workers.megatron.attention import CausalAttention
from grpo.workers.megatron.cpu_shim import megatron_on_cpu
from grpo.workers.megatron.main_gradient import MainGradient
from grpo.workers.policy.token_logprobs import token_logprobs


class BareMegatron:
    """One process; Megatron's parallel state is initialised already."""

    def __init__(self, shape: ModelShape, weights: Iterable[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        """`weights` are those of `PolicyGPT`'s parameters, in their order; they are copied."""
        self._on_device: Callable[[], contextlib.AbstractContextManager[None]] = (
            megatron_on_cpu if device.type == "cpu" else contextlib.nullcontext
        )
        with self._on_device():
            self._make(shape, weights, dtype, device)

    def _make(self, shape: ModelShape, weights: Iterable[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        config = transformer_config(
            shape, ParallelSizes(), dtype=dtype, on_cpu=device.type == "cpu", recompute=False, transformer_engine=False
        )
        specs = layer_specs(shape, shape.num_layers, core_attention=CausalAttention)
        self.model = PolicyGPT(config, shape, specs, first_stage=True, last_stage=True).to(device)
        with torch.no_grad():
            for mine, given in zip(self.model.parameters(), weights, strict=True):
                mine.copy_(given)
        self._module = DistributedDataParallel(
            config=config, module=self.model,
            ddp_config=DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True),
        )  # fmt: skip
        config.finalize_model_grads_func = _finalize
        self._optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam", lr=ADAMW["lr"], weight_decay=ADAMW["weight_decay"], adam_beta1=ADAMW["betas"][0],
                adam_beta2=ADAMW["betas"][1], adam_eps=ADAMW["eps"], params_dtype=config.params_dtype,
                bf16=config.bf16, use_distributed_optimizer=True, clip_grad=MAX_GRAD_NORM,
            ),
            [self._module],
            config_overrides={},
            use_gloo_process_groups=False,
        )  # fmt: skip
        for group in self._optimizer.param_groups:
            if isinstance(self._optimizer.chained_optimizers[0].optimizer, torch.optim.AdamW):
                group["fused"] = True
        self._forward_backward = get_forward_backward_func()

    @property
    def output_weight(self) -> Tensor:
        """[V, H]."""
        weight: Tensor = self.model.output_weight
        return weight

    def states(self, pack: Pack) -> Tensor:
        """[N, H]: hidden states that predict the trained tokens."""
        with self._on_device():
            return _hidden(self.model, pack)[:, 0].index_select(0, pack.predictors)

    def update(self, packs: list[Pack]) -> Tensor:
        """The loss, still on the device."""
        with self._on_device():
            loss = self.backward(packs)
            self._optimizer.step()
        return loss

    def backward(self, packs: list[Pack]) -> Tensor:
        """Gradients of the whole loss into `main_grad`."""
        tokens = sum(each.targets.numel() for each in packs)
        total = torch.zeros((), device=packs[0].targets.device)

        def step(packs: Iterator[Pack], model: Any) -> tuple[Tensor, Any]:
            pack = next(packs)
            return _hidden(model, pack), lambda hidden: _loss(hidden, pack)

        def _loss(hidden: Tensor, pack: Pack) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            states = hidden[:, 0].index_select(0, pack.predictors)
            weight = self.output_weight
            gradient = MainGradient(weight, embeds=self.model.share_embeddings_and_output_weights)
            logprobs = token_logprobs(states, weight, pack.targets, gradient=gradient).logprobs
            loss = clipped_loss(logprobs, pack) / tokens
            total.add_(loss.detach())
            return loss, torch.zeros((), dtype=torch.int, device=hidden.device), {}

        self._module.zero_grad_buffer()
        self._optimizer.zero_grad()
        self._forward_backward(
            forward_step_func=step, data_iterator=iter(packs), model=[self._module], num_microbatches=len(packs),
            seq_length=1, micro_batch_size=1, forward_only=False,
        )  # fmt: skip
        return total


def _hidden(model: Any, pack: Pack) -> Tensor:
    """[W, 1, H]: the last hidden states."""
    row = PackedRow(
        qkv_format="sbhd", cu_seqlens_q=pack.bounds, cu_seqlens_kv=pack.bounds,
        max_seqlen_q=max(pack.lengths), max_seqlen_kv=max(pack.lengths), lengths=pack.lengths,
    )  # fmt: skip
    hidden: Tensor = model(pack.input_ids, pack.position_ids[0], row)
    return hidden


def _finalize(model: list[Any], _tokens: Tensor | None, *args: Any, **kwargs: Any) -> None:
    """Without Megatron's division by tokens: the loss is divided already."""
    finalize_model_grads(model, None, *args, **kwargs)
