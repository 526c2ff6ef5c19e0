"""Training loops over several GPUs, as good as we can write them: what the workers over ranks are measured against.

Two states of the large shape do not fit into a GPU, so each loop trains the worker's own module with the worker's own
optimizer state: PyTorch's FSDP2 with fused AdamW, and Megatron's DDP with its distributed optimizer. What the worker
does around them is not here: no plan, no copies to the GPU, no objective but the loss, no metrics, no checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu.settings import MAX_GRAD_NORM
from benchmarks.gpu.work import CLIP
from grpo.batching.batch import Batch
from grpo.workers.policy.forward import model_inputs, needed_lengths
from grpo.workers.policy.plan import plan_batch


@dataclass(frozen=True)
class RankPack:
    """A micro-batch of this rank, all of it on the device."""

    inputs: Any  # ModelInputs or MegatronInputs
    advantages: Tensor  # [N] float32
    old_logprobs: Tensor  # [N] float32


def rank_pack(batch: Batch, rows: Sequence[int], inputs: Any, device: torch.device) -> RankPack:
    """With the trained tokens' values; those of a dummy are 0."""
    if not rows:
        nothing = torch.zeros(len(inputs.targets), device=device)
        return RankPack(inputs, nothing, nothing)
    assert batch.advantages is not None
    assert batch.old_logprobs is not None
    advantages = batch.advantages[torch.as_tensor(rows)][inputs.sequence_ids.cpu()]
    return RankPack(inputs, advantages.to(device), batch.old_logprobs[inputs.trained].to(device))


def clipped_loss(logprobs: Tensor, pack: RankPack) -> Tensor:
    """Sum over tokens of -min(rho A, clip(rho) A), rho = exp(l - l_old)."""
    ratio = (logprobs - pack.old_logprobs).exp()
    return -torch.minimum(ratio * pack.advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * pack.advantages).sum()


class BareFSDP:
    """FSDP2 over the ranks."""

    def __init__(self, policy: Any, device: torch.device) -> None:
        self._policy, self._device = policy, device
        self._root = policy._compute  # noqa: SLF001
        self._optimizer = policy._optimizer._adamw  # noqa: SLF001
        self._parameters = list(self._root.parameters())

    def packs(self, batch: Batch) -> list[RankPack]:
        """Those that the worker gives this rank."""
        needed = needed_lengths(batch)
        plan = plan_batch(needed.tolist(), self._policy._train_planning, self._policy._execution.ranks)  # noqa: SLF001
        return [
            rank_pack(batch, each.rows, model_inputs(batch, each, needed, self._device), self._device)
            for each in plan.micro_batches
        ]

    def update(self, packs: Sequence[RankPack], tokens: int) -> None:
        """Forward, backward and optimizer; `tokens` are trained on all ranks."""
        for pack in packs:
            logprobs = self._root(pack.inputs, with_entropy=False).logprobs
            (clipped_loss(logprobs, pack) / tokens).backward()  # type: ignore[no-untyped-call]
        gradients = [each.grad.to_local() for each in self._parameters if each.grad is not None]
        total = torch.nn.utils.get_total_norm(gradients).to(self._device).square()
        dist.all_reduce(total)
        norm = float(total.sqrt())
        if norm > MAX_GRAD_NORM:
            torch._foreach_mul_(gradients, MAX_GRAD_NORM / (norm + 1e-6))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


class BareMegatronRanks:
    """Megatron-Core's schedule, DDP and distributed optimizer over data parallel ranks."""

    def __init__(self, policy: Any, device: torch.device) -> None:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self._policy, self._device = policy, device
        self._module, self._model = policy._trained.module, policy._trained.model  # noqa: SLF001
        self._optimizer = policy._trained._optimizer  # noqa: SLF001
        self._forward_backward = get_forward_backward_func()

    def packs(self, batch: Batch) -> list[RankPack]:
        """Those that the worker gives this rank."""
        with self._policy._on_device():  # noqa: SLF001
            micros = self._policy._micros(batch, needed_lengths(batch), self._policy._train_planning)  # noqa: SLF001
        return [rank_pack(batch, each.rows, each, self._device) for each in micros]

    def update(self, packs: Sequence[RankPack], tokens: int) -> None:
        """Forward, backward and optimizer; `tokens` are trained on all ranks."""
        from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

        with self._policy._on_device():  # noqa: SLF001
            self._backward(packs, tokens)
            self._optimizer.prepare_grads()
            norm = float(self._optimizer.get_grad_norm())
            if norm > MAX_GRAD_NORM:
                for each in self._optimizer.chained_optimizers:
                    clip_grad_by_total_norm_fp32(each.get_parameters(), max_norm=MAX_GRAD_NORM, total_norm=norm)
            self._optimizer.step_with_ready_grads()

    def _backward(self, packs: Sequence[RankPack], tokens: int) -> None:
        from grpo.workers.megatron.main_gradient import MainGradient
        from grpo.workers.policy.token_logprobs import token_logprobs

        weight = self._model.output_weight
        total = MainGradient(weight, embeds=self._model.share_embeddings_and_output_weights)

        def loss(hidden: Tensor, pack: RankPack) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            states = hidden[:, 0].index_select(0, pack.inputs.predictors)
            logprobs = token_logprobs(states, weight, pack.inputs.targets, gradient=total).logprobs
            return clipped_loss(logprobs, pack) / tokens, torch.zeros((), dtype=torch.int, device=self._device), {}

        def step(packs: Any, model: Any) -> tuple[Tensor, Any]:
            pack = next(packs)
            hidden = model(pack.inputs.input_ids, pack.inputs.positions, pack.inputs.packed)
            return hidden, lambda output: loss(output, pack)

        self._module.zero_grad_buffer()
        self._optimizer.zero_grad()
        self._forward_backward(
            forward_step_func=step, data_iterator=iter(packs), model=[self._module], num_microbatches=len(packs),
            seq_length=1, micro_batch_size=1, forward_only=False,
        )  # fmt: skip
