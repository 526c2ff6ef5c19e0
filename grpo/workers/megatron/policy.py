"""The Megatron-Core policy worker. Imports Megatron-Core: import this module only where it is installed."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from grpo.algorithm.metrics import MetricSums
from grpo.algorithm.objective import Denominators, TokenValues, objective_loss, objective_metrics
from grpo.batching.batch import Batch
from grpo.batching.micro_batches import MicroBatch, Planning, plan_micro_batches
from grpo.batching.sharding import sequence_work, split_by_work
from grpo.checkpoint.pieces import Piece
from grpo.config.schema import Config
from grpo.errors import ConfigError
from grpo.models.drawn_weights import DrawnWeights
from grpo.models.loading import load_model, load_model_config
from grpo.models.locate import locate_model
from grpo.models.megatron.gpt import PolicyGPT, layer_specs, transformer_engine_usable
from grpo.models.megatron.names import Source
from grpo.models.megatron.settings import ParallelSizes, transformer_config
from grpo.models.megatron.shape import ModelShape
from grpo.models.megatron.weights import SafetensorsFolder, dtype_is_wide
from grpo.placement.plan import plan_of
from grpo.placement.resources import Resource
from grpo.refit.manifest import Weight
from grpo.refit.writing import Places, copied
from grpo.workers.megatron.attention import CausalAttention
from grpo.workers.megatron.compat import check_version
from grpo.workers.megatron.cpu_shim import megatron_on_cpu
from grpo.workers.megatron.inputs import InputStream, MegatronInputs, idle_inputs, megatron_inputs
from grpo.workers.megatron.main_gradient import MainGradient
from grpo.workers.megatron.optimizer import TrainedStage
from grpo.workers.megatron.parallel import join
from grpo.workers.megatron.passes import predictor_states, run
from grpo.workers.megatron.resident import policy_tensors
from grpo.workers.megatron.state import load_masters, load_state, state
from grpo.workers.megatron.transfer import StageWeights
from grpo.workers.offload.movable import PlacedPolicy, Resources
from grpo.workers.policy.context_parallel import refuse_context_parallel
from grpo.workers.policy.forward import needed_lengths, trained_tokens
from grpo.workers.policy.options import learning_rate_at, needs_reference, objective_options, planning
from grpo.workers.policy.padding_tally import PaddingTally
from grpo.workers.policy.token_logprobs import TokenLogprobs, token_logprobs
from grpo.workers.policy.transfer import to_device
from grpo.workers.policy.values import token_values
from grpo.workers.policy.vocabulary_parallel import vocabulary_parallel_logprobs
from grpo.workers.protocol import UpdateResult

SAVED = (Resource.POLICY_PARAMETERS, Resource.OPTIMIZER_STATE)
TRAINED = (*SAVED, Resource.GRADIENTS)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class MegatronPolicy(PlacedPolicy):
    """`grpo.workers.protocol.Policy` on each rank of torch.distributed's default group, or in one process without it.

    Every rank calls the same methods with the same, whole batch, takes its share of the sequences, and gets the same
    result. `weight_version` is the number of updates done: it names the weights, and places the learning rate on its
    schedule.
    """

    def __init__(
        self, shape: ModelShape, source: Source, config: Config, *, reference: Source | None = None, device: str = "cpu"
    ) -> None:
        """`source` and `reference` hold weights under transformers names; each rank reads its own parts of them.

        Raises:
            ConfigError: Megatron-Core is missing, or the ranks cannot be divided as asked.
            ModelError: the model cannot be divided as asked, or a weight is missing or of another shape.
        """
        check_version()
        assert (reference is not None) == needs_reference(config), "a reference policy is there for a KL term only"
        policy, megatron = config.policy, config.policy.megatron_cfg
        refuse_context_parallel(policy)
        sizes = ParallelSizes(
            megatron.tensor_model_parallel_size, megatron.pipeline_model_parallel_size, megatron.sequence_parallel
        )
        shape.check_layout(tensor_parallel=sizes.tensor, pipeline_parallel=sizes.pipeline)
        self.weight_version = 0
        self._shape, self._policy_config = shape, policy
        self._device = _device(device)
        self._dtype = DTYPES[policy.precision]
        self._options = objective_options(config)
        self._train_planning = planning(policy, training=True)
        self._logprob_planning = planning(policy, training=False)
        self._padding = PaddingTally()
        self._engine = transformer_engine_usable(self._device, self._dtype)
        with self._on_device():
            self._place = join(sizes, self._device, seed=config.grpo.seed)
            model, weights = self._stage(source, recompute=megatron.activation_checkpointing)
            self._weights = weights
            self._trained = TrainedStage(
                model,
                distributed=megatron.distributed_data_parallel_config,
                adamw=policy.optimizer.kwargs,
                max_grad_norm=policy.max_grad_norm,
            )
            if self._dtype != torch.float32 and any(dtype_is_wide(source[name]) for name in _first(source)):
                load_masters(self._trained, weights, source)
            self._reference = None
            if reference is not None:
                self._reference = self._stage(reference, recompute=False)[0].requires_grad_(requires_grad=False)
        self.resources = Resources(policy_tensors(self._trained, self._reference), plan_of(config), self._device)

    @classmethod
    def from_config(cls, config: Config) -> MegatronPolicy:
        """Read the model, and the reference policy where the KL penalty is not zero, part by part from its folder.

        Raises:
            ConfigError: a GPU is asked for and there is none, or as the constructor.
            ModelError: the folder is missing, unreadable or of an unsupported architecture.
        """
        policy = config.policy
        folder = locate_model(policy.model_name, policy.model_revision, weights=not policy.random_weights)
        shape = ModelShape.of(load_model_config(folder))
        on_gpu = config.cluster.gpus_per_node > 0
        if on_gpu and not torch.cuda.is_available():
            raise ConfigError(
                f"cluster.gpus_per_node is {config.cluster.gpus_per_node} but torch finds no GPU; 0 runs on the CPU"
            )
        source: Source = SafetensorsFolder(folder) if not policy.random_weights else _random(folder, config)
        reference = source if needs_reference(config) else None
        return cls(shape, source, config, reference=reference, device="cuda" if on_gpu else "cpu")

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return learning_rate_at(self._policy_config, self.weight_version)

    def logprobs(self, batch: Batch) -> Tensor:
        """[T] float32 on the CPU, 0 where the mask is false; the same on every rank."""
        self.resources.need("logprobs", Resource.POLICY_PARAMETERS)
        return self._batch_logprobs(self._trained.module, self._trained.model, batch)

    def reference_logprobs(self, batch: Batch) -> Tensor:
        """The same under the reference policy."""
        assert self._reference is not None, "no reference policy: loss_fn.reference_policy_kl_penalty is 0"
        self.resources.need("reference_logprobs", Resource.REFERENCE_PARAMETERS)
        return self._batch_logprobs(self._reference, self._reference, batch)

    def train(self, batch: Batch) -> UpdateResult:
        """One update on the whole batch. A batch without trained tokens changes nothing, the schedule included.

        Raises:
            FloatingPointError: the gradient norm is not finite, on every rank. Weights and optimizer are those before
                the call.
        """
        self.resources.need("train", *TRAINED)
        needed = needed_lengths(batch)
        trained, learning_rate = trained_tokens(batch), self.learning_rate
        if trained == 0:
            return UpdateResult({"loss": 0.0, "grad_norm": 0.0, "learning_rate": learning_rate}, trained_tokens=0)
        assert batch.advantages is not None, "training needs advantages"
        on_policy = self._options.force_on_policy_ratio
        assert (batch.old_logprobs is None) == on_policy, "old log-probs are given exactly without the on-policy ratio"
        denominators = Denominators(tokens=float(trained), sequences=float((needed > 0).sum()))
        values: list[TokenValues] = []

        def head(micro: MegatronInputs, hidden: Tensor) -> Tensor:
            with_entropy = self._options.entropy_coef != 0
            current = self._token_logprobs(self._trained.model, micro, hidden, with_entropy=with_entropy)
            if not micro.rows:
                return current.logprobs.sum()  # 0 of no token, with a gradient of 0 for every weight
            found = token_values(batch, micro.rows, micro, current)
            values.append(found.detached())
            return objective_loss(found, self._options, denominators)

        with self._on_device():
            micros = self._micros(batch, needed, self._train_planning)
            self._trained.zero_grad()
            run(self._trained.module, micros, head, self._place, train=True)
            sums = objective_metrics(values, self._options, denominators) if values else MetricSums()
            norm = self._trained.clip()
            if not math.isfinite(norm):
                self._refuse_gradients(norm, learning_rate, trained)
            self.resources.changed(*TRAINED)
            self._trained.step(learning_rate)
            totals, efficiency = self._of_all_ranks(sums, micros.computed, int(needed.sum()))
        self.weight_version += 1
        extra = {"grad_norm": norm, "learning_rate": learning_rate, "padding_efficiency": efficiency}
        return UpdateResult({**totals.finalise(denominators), **extra}, trained)

    def step_metrics(self) -> dict[str, float]:
        """See `Policy.step_metrics`: the padding of log-prob passes."""
        return self._padding.take()

    def describe_weights(self) -> list[Weight]:
        """See `Policy.describe_weights`."""
        dtype = str(self._dtype).removeprefix("torch.")
        return [Weight(name, self._weights.shape(name), dtype) for name in self._weights.names_of_model()]

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights as the forward pass sees them (compute dtype), under transformers names, tied ones once.

        Every rank gets every weight, one at a time, and must take them all: they are gathered over the tensor parallel
        ranks and sent from their pipeline stage to the others.
        """
        self.resources.need("export_weights", Resource.POLICY_PARAMETERS)
        with self._on_device():
            self._trained.await_weights()
        yield from self._weights.export(self._device, self._dtype)

    def write_weights(self, buckets: Iterable[Places]) -> Iterator[None]:
        """See `StatefulPolicy.write_weights`."""
        return copied(self.export_weights(), buckets)

    def state(self) -> tuple[list[Piece], dict[str, Any]]:
        """What `DTensorPolicy.state` gives, under the same names, so that either backend takes up the other's."""
        self.resources.need("state", *SAVED)
        return state(self._trained, self._weights), {"weight_version": self.weight_version, "backend": "megatron"}

    def load_state(self, tensors: Mapping[str, Any], values: Mapping[str, Any], *, optimizer: bool = True) -> None:
        """Take back whole tensors, or stored ones of which each rank reads its part. Any layout and backend will do.

        Without `optimizer` Adam begins anew; the schedule goes on.

        Raises:
            CheckpointError: names or shapes are those of another model.
        """
        self.resources.need("load_state", *SAVED)
        self.resources.changed(*SAVED)
        with self._on_device():
            self._trained.await_weights()
        load_state(self._trained, self._weights, tensors, optimizer=optimizer)
        self.weight_version = int(values["weight_version"])

    def _on_device(self) -> contextlib.AbstractContextManager[None]:
        return megatron_on_cpu() if self._device.type == "cpu" else contextlib.nullcontext()

    def _stage(self, source: Source, *, recompute: bool) -> tuple[PolicyGPT, StageWeights]:
        config = transformer_config(
            self._shape, self._place.sizes, dtype=self._dtype, on_cpu=self._device.type == "cpu", recompute=recompute,
            transformer_engine=self._engine,
        )  # fmt: skip
        attention = None if self._engine else CausalAttention
        layers = len(self._place.layers(self._shape.num_layers))
        model = PolicyGPT(
            config, self._shape, layer_specs(self._shape, layers, core_attention=attention),
            first_stage=self._place.first_stage, last_stage=self._place.last_stage,
        )  # fmt: skip
        weights = StageWeights(model.to(self._device), self._shape, self._place, fused_norms=self._engine)
        weights.load(source)
        return model, weights

    def _micros(self, batch: Batch, needed: Tensor, how: Planning) -> InputStream:
        """The micro-batches of this data parallel rank; one idle one where it has no sequence."""
        multiple = self._place.sizes.tensor if self._place.sizes.sequence_parallel else 1
        rows = needed.nonzero()[:, 0].tolist()
        lengths = needed[rows].tolist()
        cost = {"parameters": self._shape.matrix_parameters, "attention_width": self._shape.attention_width}
        work = [sequence_work(length, **cost) for length in lengths]
        mine = split_by_work(work, self._place.data_size)[self._place.data_rank]
        plan = plan_micro_batches([lengths[each] for each in mine], how)
        if not plan:
            return InputStream([partial(idle_inputs, self._device, multiple=multiple)])
        settings: Any = {"needed": needed, "device": self._device, "multiple": multiple, "thd": self._engine}
        own = [MicroBatch([rows[mine[i]] for i in each.rows], each.width, each.computed_tokens) for each in plan]
        return InputStream([partial(megatron_inputs, batch, each, **settings) for each in own])

    def _token_logprobs(
        self, model: PolicyGPT, micro: MegatronInputs, hidden: Tensor, *, with_entropy: bool
    ) -> TokenLogprobs:
        weight = model.output_weight
        if model is self._trained.model:
            self._trained.await_weight(weight)
        states = predictor_states(hidden, micro, self._place)
        settings: Any = {
            "temperature": self._policy_config.generation.temperature,
            "chunk_size": self._policy_config.logprob_chunk_size,
            "with_entropy": with_entropy,
        }
        if self._place.sizes.tensor == 1:
            total = None
            if model is self._trained.model and torch.is_grad_enabled():
                total = MainGradient(weight, embeds=self._shape.tied and self._place.first_stage)
            return token_logprobs(states, weight, micro.targets, **settings, gradient=total)
        first = self._place.tensor_rank * weight.shape[0]
        own = weight[: self._shape.vocab_size - first]  # without the rows that pad the vocabulary
        group = self._place.tensor_group
        return vocabulary_parallel_logprobs(states, own, micro.targets, first_row=first, group=group, **settings)

    def _batch_logprobs(self, module: torch.nn.Module, model: PolicyGPT, batch: Batch) -> Tensor:
        needed = needed_lengths(batch)
        if not needed.any():
            return torch.zeros(batch.tokens.numel(), dtype=torch.float32)
        result = torch.zeros(batch.tokens.numel(), dtype=torch.float32, device=self._device)

        def head(micro: MegatronInputs, hidden: Tensor) -> Tensor:
            values = self._token_logprobs(model, micro, hidden, with_entropy=False).logprobs
            if self._place.speaks:
                result[to_device(micro.trained, self._device)] = values.float()
            return hidden.new_zeros(())

        with self._on_device():
            micros = self._micros(batch, needed, self._logprob_planning)
            run(module, micros, head, self._place, train=False)
        computed = micros.computed if self._place.speaks else 0
        shared = torch.cat([result, result.new_tensor([computed])])
        dist.all_reduce(shared)  # each token is of one rank
        real_tokens = int(needed.sum())
        self._padding.add(real_tokens, real_tokens / float(shared[-1]))
        return shared[:-1].cpu()

    def _of_all_ranks(self, sums: MetricSums, computed: int, real_tokens: int) -> tuple[MetricSums, float]:
        """Metrics over the whole batch, and its padding efficiency. `computed` tokens are of this rank."""
        if dist.get_world_size() == 1:
            return sums, real_tokens / computed
        own = (sums.on_host(), computed) if self._place.speaks else None
        every: list[tuple[MetricSums, int] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(every, own)
        spoken = [each for each in every if each is not None]
        merged = functools.reduce(MetricSums.merge, (each for each, _ in spoken))
        return merged, real_tokens / sum(each for _, each in spoken)

    def _refuse_gradients(self, norm: float, learning_rate: float, trained: int) -> None:
        names = self._trained.non_finite()
        self._trained.zero_grad()
        raise FloatingPointError(
            f"update {self.weight_version + 1}: the gradient norm is {norm} over {trained} trained tokens at "
            f"learning rate {learning_rate:g}; {len(names)} parameters of this rank have gradients that are not "
            f"finite, first {names[:3]}; the weights are unchanged"
        )


def _device(name: str) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def _random(folder: Path, config: Config) -> Source:
    if config.cluster.gpus_per_node > 0:
        return DrawnWeights(folder, config.grpo.seed, _device("cuda"))
    model = load_model(folder, dtype=torch.float32, random_weights=True, seed=config.grpo.seed)
    return dict(model.state_dict())


def _first(source: Source) -> list[str]:
    return [next(iter(source))]
