"""The PyTorch policy worker: a transformers model, its optimizer and, where a KL term asks for one, its reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo.algorithm.metrics import MetricSums
from grpo.algorithm.objective import Denominators, TokenValues, objective
from grpo.batching.batch import Batch
from grpo.batching.micro_batches import MicroBatch, Planning, padding_efficiency, plan_micro_batches
from grpo.config.schema import Config
from grpo.errors import CheckpointError, ConfigError
from grpo.models.loading import load_model
from grpo.models.locate import locate_model
from grpo.workers.policy.architecture import check_supported, checkpoint_activations, output_weight
from grpo.workers.policy.attention import use_causal_attention
from grpo.workers.policy.forward import ModelInputs, model_inputs, needed_lengths, predictor_states
from grpo.workers.policy.optimizer import OPTIMIZERS
from grpo.workers.policy.options import needs_reference, objective_options, planning
from grpo.workers.policy.precision import RoundedCopy
from grpo.workers.policy.schedule import learning_rate_factor
from grpo.workers.policy.token_logprobs import TokenLogprobs, token_logprobs
from grpo.workers.protocol import UpdateResult

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODEL_PREFIX, OPTIMIZER_PREFIX = "model.", "optimizer."


class DTensorPolicy:
    """`grpo.workers.protocol.Policy` in one process.

    `weight_version` is the number of updates done: it names the weights, and places the learning rate on its schedule.
    """

    def __init__(
        self, model: PreTrainedModel, config: Config, *, reference: PreTrainedModel | None = None, device: str = "cpu"
    ) -> None:
        """`model` has float32 parameters and is trained in place; `reference` is never changed.

        Raises:
            ModelError: an architecture whose log-probs would be wrong.
        """
        for each in (model,) if reference is None else (model, reference):
            check_supported(each)
            use_causal_attention(each)
        policy = config.policy
        assert all(each.dtype in {torch.float32, torch.float64} for each in model.parameters()), "masters are float32"
        assert (reference is not None) == needs_reference(config), "a reference policy is there for a KL term only"
        self.weight_version = 0
        self._device = torch.device(device)
        self._policy_config = policy
        self._options = objective_options(config)
        self._train_planning = planning(policy, training=True)
        self._logprob_planning = planning(policy, training=False)
        self._masters = model.to(self._device).eval()  # type: ignore[arg-type]
        dtype = DTYPES[policy.precision]
        self._rounded = None if dtype == torch.float32 else RoundedCopy(self._masters, dtype)
        self._compute = self._masters if self._rounded is None else self._rounded.module
        if policy.dtensor_cfg.activation_checkpointing:
            checkpoint_activations(self._compute)
        self._reference = None if reference is None else _frozen(reference, dtype, self._device)
        adamw = policy.optimizer.kwargs
        self._optimizer = OPTIMIZERS[policy.optimizer.name](
            self._masters, lr=adamw.lr, betas=adamw.betas, eps=adamw.eps, weight_decay=adamw.weight_decay
        )

    @classmethod
    def from_config(cls, config: Config) -> DTensorPolicy:
        """Load the model, and the reference policy where the KL penalty is not zero.

        Raises:
            ConfigError: a GPU is asked for and there is none.
            ModelError: the folder is missing, unreadable or of an unsupported architecture.
        """
        device = _device(config)
        policy = config.policy
        folder = locate_model(policy.model_name, policy.model_revision)

        def load() -> PreTrainedModel:
            return load_model(folder, dtype=torch.float32, random_weights=policy.random_weights, seed=config.grpo.seed)

        return cls(load(), config, reference=load() if needs_reference(config) else None, device=device)

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        schedule = self._policy_config.scheduler
        return self._policy_config.optimizer.kwargs.lr * learning_rate_factor(
            self.weight_version,
            warmup_steps=schedule.warmup_steps,
            decay=schedule.decay,
            decay_steps=schedule.decay_steps,
            min_ratio=schedule.min_lr_ratio,
        )

    def logprobs(self, batch: Batch) -> Tensor:
        """[T] float32 on the CPU, 0 where the mask is false."""
        return self._batch_logprobs(self._compute, batch)

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """The same under the reference policy."""
        assert self._reference is not None, "no reference policy: loss_fn.reference_policy_kl_penalty is 0"
        return self._batch_logprobs(self._reference, batch)

    def train(self, batch: Batch) -> UpdateResult:
        """One update on the whole batch. A batch without trained tokens changes nothing, the schedule included.

        Raises:
            FloatingPointError: the gradient norm is not finite. Weights and optimizer are those before the call.
        """
        needed = needed_lengths(batch)
        plan, efficiency = _plan(needed.tolist(), self._train_planning)
        learning_rate = self.learning_rate
        if not plan:
            return UpdateResult({"loss": 0.0, "grad_norm": 0.0, "learning_rate": learning_rate}, trained_tokens=0)
        trained_tokens = int(batch.mask.sum())
        denominators = Denominators(tokens=float(trained_tokens), sequences=float(sum(len(each.rows) for each in plan)))
        sums = [self._backward(batch, micro, needed, denominators) for micro in plan]
        norm = self._optimizer.clip(self._policy_config.max_grad_norm)
        if not math.isfinite(norm):
            self._refuse_gradients(norm, learning_rate, trained_tokens)
        self._optimizer.step(learning_rate)
        if self._rounded is not None:
            self._rounded.refresh()
        self.weight_version += 1
        metrics = _merged(sums).finalise(denominators)
        extra = {"grad_norm": norm, "learning_rate": learning_rate, "padding_efficiency": efficiency}
        return UpdateResult({**metrics, **extra}, trained_tokens)

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights as the forward pass sees them (compute dtype), under Hugging Face names, tied ones once.

        They are the live tensors, without a copy.
        """
        for name, parameter in self._compute.named_parameters():
            yield name, parameter.detach()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Masters under `model.`, Adam's moments under `optimizer.`, and counters.

        The tensors are the live ones, without a copy: write them or copy them before the next update.
        """
        tensors = {MODEL_PREFIX + name: each.detach() for name, each in self._masters.named_parameters()}
        tensors |= {OPTIMIZER_PREFIX + name: each for name, each in self._optimizer.state().items()}
        return tensors, {"weight_version": self.weight_version}

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Take back what `state` gave, by copying.

        Raises:
            CheckpointError: names or shapes are those of another model.
        """
        parameters = {MODEL_PREFIX + name: each for name, each in self._masters.named_parameters()}
        weights = {name: each for name, each in tensors.items() if name.startswith(MODEL_PREFIX)}
        _check_same_model(parameters, weights)
        self._optimizer.load_state(_without_prefix(tensors, OPTIMIZER_PREFIX))
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
        if self._rounded is not None:
            self._rounded.refresh()
        self.weight_version = int(values["weight_version"])

    def _backward(self, batch: Batch, micro: MicroBatch, needed: Tensor, denominators: Denominators) -> MetricSums:
        inputs = model_inputs(batch, micro, needed, self._device)
        current = self._token_logprobs(self._compute, inputs, with_entropy=self._options.entropy_coef != 0)
        assert batch.advantages is not None, "training needs advantages"
        on_policy = self._options.force_on_policy_ratio
        assert (batch.old_logprobs is None) == on_policy, "old log-probs are given exactly without the on-policy ratio"
        values = TokenValues(
            logprobs=current.logprobs,
            mask=torch.ones_like(inputs.targets, dtype=torch.bool),
            sequence_ids=inputs.sequence_ids.to(self._device),
            num_sequences=len(micro.rows),
            advantages=batch.advantages[torch.as_tensor(micro.rows)].to(self._device),
            generation_logprobs=batch.generation_logprobs[inputs.trained].to(self._device),
            old_logprobs=_at(batch.old_logprobs, inputs.trained, self._device),
            reference_logprobs=_at(batch.reference_logprobs, inputs.trained, self._device),
            entropy=current.entropy,
        )
        result = objective(values, self._options, denominators)
        result.loss.backward()  # type: ignore[no-untyped-call]
        return result.metrics

    def _token_logprobs(self, model: PreTrainedModel, inputs: ModelInputs, *, with_entropy: bool) -> TokenLogprobs:
        return token_logprobs(
            predictor_states(model, inputs),
            output_weight(model),
            inputs.targets,
            temperature=self._policy_config.generation.temperature,
            chunk_size=self._policy_config.logprob_chunk_size,
            with_entropy=with_entropy,
        )

    @torch.no_grad()
    def _batch_logprobs(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        needed = needed_lengths(batch)
        plan, _ = _plan(needed.tolist(), self._logprob_planning)
        result = torch.zeros(batch.tokens.numel(), dtype=torch.float32)
        parts = []
        for micro in plan:
            inputs = model_inputs(batch, micro, needed, self._device)
            parts.append((inputs.trained, self._token_logprobs(model, inputs, with_entropy=False).logprobs))
        for trained, values in parts:  # only now wait for the device
            result[trained] = values.to("cpu", torch.float32)
        return result

    def _refuse_gradients(self, norm: float, learning_rate: float, trained_tokens: int) -> None:
        names = self._optimizer.non_finite()
        self._optimizer.zero_grad()
        raise FloatingPointError(
            f"update {self.weight_version + 1}: the gradient norm is {norm} over {trained_tokens} trained tokens at "
            f"learning rate {learning_rate:g}; {len(names)} parameters have gradients that are not finite, first "
            f"{names[:3]}; the weights are unchanged"
        )


def _device(config: Config) -> str:
    if config.cluster.gpus_per_node == 0:
        return "cpu"
    if not torch.cuda.is_available():
        raise ConfigError(
            f"cluster.gpus_per_node is {config.cluster.gpus_per_node} but torch finds no GPU; 0 runs on the CPU"
        )
    return "cuda"


def _frozen(model: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    model = model.to(device).eval().requires_grad_(requires_grad=False)  # type: ignore[arg-type]
    for parameter in model.parameters():  # buffers keep their dtype
        parameter.data = parameter.data.to(dtype)
    return model


def _plan(needed: Sequence[int], how: Planning) -> tuple[list[MicroBatch], float]:
    """Micro-batches of the sequences that have trained tokens, and their padding efficiency."""
    rows = [row for row, length in enumerate(needed) if length]
    lengths = [needed[row] for row in rows]
    plan = plan_micro_batches(lengths, how)
    renamed = [MicroBatch([rows[i] for i in each.rows], each.width, each.computed_tokens) for each in plan]
    return renamed, padding_efficiency(lengths, plan)


def _at(values: Tensor | None, index: Tensor, device: torch.device) -> Tensor | None:
    return None if values is None else values[index].to(device)


def _merged(sums: Sequence[MetricSums]) -> MetricSums:
    total = sums[0]
    for each in sums[1:]:
        total = total.merge(each)
    return total


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}


def _check_same_model(parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]) -> None:
    odd = sorted(set(parameters) ^ set(weights))
    if odd:
        raise CheckpointError(f"the checkpoint is of another model: {len(odd)} weight names differ, first {odd[0]}")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            raise CheckpointError(
                f"the checkpoint is of another model: {name} has shape {list(weights[name].shape)} there and "
                f"{list(parameter.shape)} here"
            )
