"""The engine that needs transformers alone: the default on a laptop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo.config.schema import Config
from grpo.models.loading import load_model, load_tokenizer
from grpo.models.locate import locate_model
from grpo.placement.resources import EngineTag, Residence, Resource
from grpo.workers.generation.decoder import Decoder, TransformersDecoder
from grpo.workers.generation.decoding import Job, decode
from grpo.workers.generation.dense_decoder import DenseDecoder, fused_names, supports
from grpo.workers.generation.engine_weights import EngineWeights
from grpo.workers.generation.requests import check_requests
from grpo.workers.generation.stopping import StopStrings
from grpo.workers.generation.vllm_arguments import context_length
from grpo.workers.offload.engine import EngineResidence
from grpo.workers.offload.memory import DeviceMemory, memory_of
from grpo.workers.offload.storages import storages_of
from grpo.workers.protocol import Completion, SamplingParams

CACHE_BYTES = 2 << 30  # of one batch: keys, values and the logits of a step


class HfGenerator:
    """A `Generator` over a transformers model of its own, in this process.

    Dense Llama-like models are decoded by `DenseDecoder`, all others by their own forward. The cache lives only inside
    `generate`: asleep are the weights alone.
    """

    def __init__(self, config: Config, model_path: Path, *, cache_bytes: int = CACHE_BYTES) -> None:
        """Load the weights of `model_path`, or draw them under `policy.random_weights`, in `policy.precision`."""
        policy = config.policy
        self._config = config
        self._device = torch.device("cuda" if config.cluster.gpus_per_node else "cpu")
        model = load_model(
            model_path,
            dtype=getattr(torch, policy.precision),
            random_weights=policy.random_weights,
            seed=config.grpo.seed,
        )
        model = model.to(self._device).requires_grad_(False)  # type: ignore[arg-type]
        self._context = context_length(config)
        self._cache_bytes = cache_bytes
        self._model_path = model_path
        self._vocabulary: int = model.config.vocab_size
        self._column_bytes, self._row_bytes = _cache_sizes(model)
        dense = supports(model)
        self._weights = EngineWeights(model, self._vocabulary, fused_names(model) if dense else ())
        self._decoder: Decoder = DenseDecoder(model, self._weights) if dense else TransformersDecoder(model)
        self._tokenizer: Any = None
        self.memory: DeviceMemory = memory_of(self._device)
        self._residence = EngineResidence()
        self._asleep: list[torch.UntypedStorage] = []
        self.weight_version = 0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_completions: int,
        sampling: SamplingParams,
        seeds: Sequence[int],
        *,
        completions: range | None = None,
    ) -> list[list[Completion]]:
        """Sample; see `Generator.generate`. `completions`: which of each prompt's are wanted, None: all.

        A completion ends with the first of `stop_token_ids`, which it includes; with the token that completes one of
        `stop_strings`, which stays too; or with "length" at `max_new_tokens` or at the end of the context.

        Raises:
            GenerationError: a request that the model cannot take, or logits that are not finite.
        """
        self._residence.need_all("generate")
        check_requests(prompts, num_completions, sampling, seeds, context=self._context, vocabulary=self._vocabulary)
        strings = StopStrings(self._load_tokenizer(), sampling) if sampling.stop_strings else None
        results: list[list[Completion]] = [[] for _ in prompts]
        wanted = range(num_completions) if completions is None else completions
        for job in self._jobs(prompts, num_completions, sampling, seeds, wanted):
            sampled = decode(self._decoder, job, sampling, self._device, strings)
            for position, index in enumerate(job.indices):
                for row in range(position * job.count, (position + 1) * job.count):
                    results[index].append(Completion(*sampled.completion(row), self.weight_version))
        return results

    def update_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Take all weights under their Hugging Face names, tied ones once; on an error the old ones stay.

        Raises:
            GenerationError: a name is unknown, arrives twice or is missing, or a shape differs.
        """
        self._residence.need_weights("update_weights")
        self._weights.replace(weights)
        if isinstance(self._decoder, DenseDecoder):
            self._decoder.bind()
        self._residence.updated()
        self.weight_version = version

    def residences(self) -> dict[Resource, Residence]:
        """Where weights and KV cache are."""
        return self._residence.residences()

    def sleep(self, level: Literal[1, 2]) -> None:
        """See `Generator.sleep`."""
        self._residence.fell_asleep(level)
        self._asleep = storages_of(self._weights.blocks(), self._device)
        if level == 1:
            self.memory.offload(Resource.ENGINE_WEIGHTS, self._asleep, changed=True)
        else:
            self.memory.drop(Resource.ENGINE_WEIGHTS, self._asleep)
        self.memory.release()

    def wake(self, tags: Sequence[EngineTag]) -> None:
        """See `Generator.wake`."""
        saved = self._residence.weights == Residence.CPU
        self._residence.woke(tags)
        if "weights" in tags:
            asleep, self._asleep = self._asleep, []
            if saved:
                self.memory.onload(Resource.ENGINE_WEIGHTS, asleep)
            else:
                self.memory.remake(Resource.ENGINE_WEIGHTS, asleep)

    def shutdown(self) -> None:
        """Nothing runs outside `generate`."""

    def _load_tokenizer(self) -> Any:
        if self._tokenizer is None:
            policy = self._config.policy
            name = policy.tokenizer.name
            folder = self._model_path if name is None else locate_model(name, key="policy.tokenizer.name")
            self._tokenizer = load_tokenizer(folder)
        return self._tokenizer

    def _jobs(
        self,
        prompts: Sequence[Sequence[int]],
        num_completions: int,
        sampling: SamplingParams,
        seeds: Sequence[int],
        wanted: range,
    ) -> Iterator[Job]:
        """Batches whose cache fits, prompts of like length together."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]), reverse=True)
        while order:
            columns = len(prompts[order[0]]) + sampling.max_new_tokens
            rows = max(1, self._cache_bytes // (columns * self._column_bytes + self._row_bytes))
            indices, count = order[: max(1, rows // len(wanted))], min(rows, len(wanted))
            order = order[len(indices) :]
            for first in range(wanted.start, wanted.stop, count):
                yield Job(
                    indices=indices,
                    prompts=[prompts[index] for index in indices],
                    seeds=[seeds[index] for index in indices],
                    limits=[min(sampling.max_new_tokens, self._context - len(prompts[index])) for index in indices],
                    num_completions=num_completions,
                    first=first,
                    count=min(count, wanted.stop - first),
                )


def _cache_sizes(model: PreTrainedModel) -> tuple[int, int]:
    """Bytes of keys and values of one token of one row, and of what sampling holds for one row."""
    config: Any = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    column = 2 * config.num_hidden_layers * heads * head_size * model.dtype.itemsize
    return column, 24 * config.vocab_size  # logits and probabilities in float32, their running sum in float64, copies
