"""The PyTorch policy worker: a transformers model, its optimizer and, where a KL term asks for one, its reference.

In one process as it is; over the ranks of a `ParallelContext` every rank runs this worker with the same calls and the
same whole batch, computes its share, and has the result of one process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo.algorithm.metrics import MetricSums
from grpo.algorithm.objective import Denominators, TokenValues, objective_loss, objective_metrics
from grpo.batching.batch import Batch
from grpo.batching.micro_batches import MicroBatch
from grpo.checkpoint.pieces import Piece
from grpo.config.schema import Config
from grpo.errors import CheckpointError, ConfigError
from grpo.models.drawn_weights import DrawnWeights, drawn_model
from grpo.models.loading import load_model
from grpo.models.locate import locate_model
from grpo.models.sharded_loading import random_weights, shape_of_model, stored_weights
from grpo.placement.plan import plan_of
from grpo.placement.resources import Resource
from grpo.refit.manifest import Weight
from grpo.refit.writing import Places
from grpo.workers.offload.movable import PlacedPolicy, Resources
from grpo.workers.policy.architecture import check_supported
from grpo.workers.policy.forward import model_inputs, needed_lengths, trained_tokens
from grpo.workers.policy.layers import use_own_layers
from grpo.workers.policy.local import LocalExecution
from grpo.workers.policy.logprob_model import LogprobModel
from grpo.workers.policy.options import learning_rate_at, needs_reference, objective_options, planning
from grpo.workers.policy.padding_tally import PaddingTally
from grpo.workers.policy.parallel import ParallelContext, check_parallel
from grpo.workers.policy.plan import plan_batch
from grpo.workers.policy.resident import policy_tensors
from grpo.workers.policy.sharded import ShardedExecution
from grpo.workers.policy.values import token_values
from grpo.workers.protocol import UpdateResult

MODEL_PREFIX, OPTIMIZER_PREFIX = "model.", "optimizer."
SAVED = (Resource.POLICY_PARAMETERS, Resource.OPTIMIZER_STATE)
TRAINED = (*SAVED, Resource.GRADIENTS)


class DTensorPolicy(PlacedPolicy):
    """`grpo.workers.protocol.Policy` in one process.

    `weight_version` is the number of updates done: it names the weights, and places the learning rate on its schedule.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: Config,
        *,
        reference: PreTrainedModel | None = None,
        device: str = "cpu",
        parallel: ParallelContext | None = None,
    ) -> None:
        """`model` has float32 parameters and is trained in place; `reference` is never changed.

        With `parallel` all its ranks give the same models, on the CPU, of which each keeps its part.

        Raises:
            ModelError: an architecture whose log-probs would be wrong.
            ConfigError: a model that the ranks cannot share.
        """
        for each in (model,) if reference is None else (model, reference):
            check_supported(each)
            use_own_layers(each)
        policy = config.policy
        assert all(each.dtype in {torch.float32, torch.float64} for each in model.parameters()), "masters are float32"
        assert (reference is not None) == needs_reference(config), "a reference policy is there for a KL term only"
        self.weight_version = 0
        self._device = torch.device(device)
        self._policy_config = policy
        self._options = objective_options(config)
        self._train_planning = planning(policy, training=True)
        self._logprob_planning = planning(policy, training=False)
        self._padding = PaddingTally()
        self._execution: LocalExecution | ShardedExecution
        if parallel is None:
            assert not policy.dtensor_cfg.cpu_offload, "sharded parameters alone can lie on the CPU"
            check_parallel(policy, 1, model.config)
            self._execution = LocalExecution(model, reference, policy, self._device)
        else:
            check_parallel(policy, parallel.mesh.size(), model.config)
            self._execution = ShardedExecution(model, reference, policy, self._device, parallel)
        self._masters, self._optimizer = self._execution.masters, self._execution.optimizer
        self._compute, self._reference = self._execution.compute, self._execution.reference
        self.resources = Resources(policy_tensors(self._execution), plan_of(config), self._device)

    @classmethod
    def from_config(cls, config: Config, parallel: ParallelContext | None = None) -> DTensorPolicy:
        """Load the model, and the reference policy where the KL penalty is not zero.

        With `parallel` no rank ever holds a whole model: each reads its part of every weight. On a GPU random weights
        are drawn there.

        Raises:
            ConfigError: a GPU is asked for and there is none, or the ranks cannot share the model.
            ModelError: the folder is missing, unreadable or of an unsupported architecture.
        """
        device = _device(config)
        policy = config.policy
        folder = locate_model(policy.model_name, policy.model_revision, weights=not policy.random_weights)
        with_reference = needs_reference(config)
        drawn = policy.random_weights and device == "cuda"
        if parallel is None:

            def load() -> PreTrainedModel:
                if drawn:
                    return drawn_model(folder, config.grpo.seed, torch.device(device))
                return load_model(
                    folder, dtype=torch.float32, random_weights=policy.random_weights, seed=config.grpo.seed
                )

            return cls(load(), config, reference=load() if with_reference else None, device=device)
        reference = shape_of_model(folder) if with_reference else None
        worker = cls(shape_of_model(folder), config, reference=reference, device=device, parallel=parallel)
        execution = worker._execution
        assert isinstance(execution, ShardedExecution)
        for model in (execution.compute, execution.reference):
            if model is None:
                continue
            if drawn:
                weights = DrawnWeights(folder, config.grpo.seed, torch.device(device)).readers()
            elif policy.random_weights:
                weights = random_weights(folder, config.grpo.seed)
            else:
                weights = stored_weights(folder, {name: each.shape for name, each in model.model.named_parameters()})
            execution.fill(model, weights)
        return worker

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return learning_rate_at(self._policy_config, self.weight_version)

    def logprobs(self, batch: Batch) -> Tensor:
        """[T] float32 on the CPU, 0 where the mask is false."""
        self.resources.need("logprobs", Resource.POLICY_PARAMETERS)
        return self._batch_logprobs(self._compute, batch)

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """The same under the reference policy."""
        assert self._reference is not None, "no reference policy: loss_fn.reference_policy_kl_penalty is 0"
        self.resources.need("reference_logprobs", Resource.REFERENCE_PARAMETERS)
        return self._batch_logprobs(self._reference, batch)

    def train(self, batch: Batch) -> UpdateResult:
        """One update on the whole batch. A batch without trained tokens changes nothing, the schedule included.

        Raises:
            FloatingPointError: the gradient norm is not finite. Weights and optimizer are those before the call.
        """
        self.resources.need("train", *TRAINED)
        needed = needed_lengths(batch)
        plan = plan_batch(needed.tolist(), self._train_planning, self._execution.ranks)
        learning_rate = self.learning_rate
        if not plan.sequences:
            return UpdateResult({"loss": 0.0, "grad_norm": 0.0, "learning_rate": learning_rate}, trained_tokens=0)
        trained = trained_tokens(batch)
        denominators = Denominators(tokens=float(trained), sequences=float(plan.sequences))
        values = []
        with self._execution.adding_gradients() as micro_batch_done:
            for micro in plan.micro_batches:
                values.append(self._backward(batch, micro, needed, denominators))
                micro_batch_done()
        sums = self._execution.total_metrics(objective_metrics(values, self._options, denominators), plan)
        sums = sums.merge(MetricSums({"grad_norm": self._optimizer.norm()})).on_host()  # the one wait for the device
        norm = float(sums.sums["grad_norm"])
        if not math.isfinite(norm):
            self._refuse_gradients(norm, learning_rate, trained)
        self._optimizer.clip(norm, self._policy_config.max_grad_norm)
        self.resources.changed(*TRAINED)
        self._optimizer.step(learning_rate)
        self._execution.weights_changed()
        self.weight_version += 1
        extra = {"learning_rate": learning_rate, "padding_efficiency": plan.efficiency}
        return UpdateResult({**sums.finalise(denominators), **extra}, trained)

    def step_metrics(self) -> dict[str, float]:
        """See `Policy.step_metrics`: the padding of log-prob passes."""
        return self._padding.take()

    def describe_weights(self) -> list[Weight]:
        """See `Policy.describe_weights`."""
        return self._execution.described_weights()

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights as the forward pass sees them (compute dtype), under Hugging Face names, tied ones once.

        In one process they are the live tensors, without a copy; over ranks each is gathered when its turn comes, and
        every rank must take them all.
        """
        self.resources.need("export_weights", Resource.POLICY_PARAMETERS)
        return self._execution.whole_weights()

    def write_weights(self, buckets: Iterable[Places]) -> Iterator[None]:
        """See `StatefulPolicy.write_weights`."""
        self.resources.need("write_weights", Resource.POLICY_PARAMETERS)
        return self._execution.write_weights(buckets)

    def state(self) -> tuple[list[Piece], dict[str, Any]]:
        """Masters under `model.`, Adam's moments under `optimizer.`, and counters.

        The pieces are the live tensors, without a copy: write them or copy them before the next update. Over ranks each
        has its own part, and no element is of two ranks.
        """
        self.resources.need("state", *SAVED)
        tensors = {MODEL_PREFIX + name: each.detach() for name, each in self._masters.named_parameters()}
        tensors |= {OPTIMIZER_PREFIX + name: each for name, each in self._optimizer.state().items()}
        return self._execution.pieces(tensors), {"weight_version": self.weight_version, "backend": "dtensor"}

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Any], values: Mapping[str, Any], *, optimizer: bool = True) -> None:
        """Take back whole tensors, or stored ones of which each rank reads its part. Any layout and backend will do.

        Without `optimizer` Adam begins anew; the schedule goes on.

        Raises:
            CheckpointError: names or shapes are those of another model.
        """
        self.resources.need("load_state", *SAVED)
        self.resources.changed(*SAVED)
        parameters = {MODEL_PREFIX + name: each for name, each in self._masters.named_parameters()}
        weights = {name: each for name, each in tensors.items() if name.startswith(MODEL_PREFIX)}
        _check_same_model(parameters, weights)
        self._optimizer.load_state(_without_prefix(tensors, OPTIMIZER_PREFIX) if optimizer else {})
        for name, parameter in parameters.items():
            self._execution.take(parameter, weights[name])
        self._execution.weights_changed()
        self.weight_version = int(values["weight_version"])

    def _backward(self, batch: Batch, micro: MicroBatch, needed: Tensor, denominators: Denominators) -> TokenValues:
        on_policy = self._options.force_on_policy_ratio
        assert (batch.old_logprobs is None) == on_policy, "old log-probs are given exactly without the on-policy ratio"
        inputs = model_inputs(batch, micro, needed, self._device)
        current = self._compute(inputs, with_entropy=self._options.entropy_coef != 0)
        values = token_values(batch, micro.rows, inputs, current)
        objective_loss(values, self._options, denominators).backward()  # type: ignore[no-untyped-call]
        return values.detached()

    @torch.no_grad()
    def _batch_logprobs(self, model: LogprobModel, batch: Batch) -> Tensor:
        needed = needed_lengths(batch)
        plan = plan_batch(needed.tolist(), self._logprob_planning, self._execution.ranks)
        self._padding.add(int(needed.sum()), plan.efficiency)
        result = torch.from_numpy(np.zeros(batch.tokens.numel(), dtype=np.float32))  # see `needed_lengths`
        trained, values = [], []
        for micro in plan.micro_batches:
            inputs = model_inputs(batch, micro, needed, self._device)
            found = model(inputs, with_entropy=False).logprobs
            trained.append(inputs.trained.numpy())
            values.append(found[: len(inputs.trained)].float())  # a dummy's is left out
        self._execution.pass_done(model)
        if values:
            result.numpy()[np.concatenate(trained)] = torch.cat(values).cpu().numpy()  # the one wait for the device
        return self._execution.total_tokens(result)

    def _refuse_gradients(self, norm: float, learning_rate: float, trained: int) -> None:
        names = self._optimizer.non_finite()
        self._optimizer.zero_grad()
        raise FloatingPointError(
            f"update {self.weight_version + 1}: the gradient norm is {norm} over {trained} trained tokens at "
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


def _without_prefix(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}


def _check_same_model(parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Any]) -> None:
    odd = sorted(set(parameters) ^ set(weights))
    if odd:
        raise CheckpointError(f"the checkpoint is of another model: {len(odd)} weight names differ, first {odd[0]}")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            raise CheckpointError(
                f"the checkpoint is of another model: {name} has shape {list(weights[name].shape)} there and "
                f"{list(parameter.shape)} here"
            )
