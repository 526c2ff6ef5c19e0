"""The vLLM engine, in the process that makes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from grpo.config.schema import Config
from grpo.errors import GenerationError
from grpo.models.loading import load_model
from grpo.placement.resources import EngineTag, Residence, Resource
from grpo.workers.generation import vllm_compat
from grpo.workers.generation.expected_weights import ExpectedWeights
from grpo.workers.generation.replay import each_completion
from grpo.workers.generation.requests import check_requests
from grpo.workers.generation.vllm_arguments import context_length, engine_arguments
from grpo.workers.generation.vllm_parallel import check_ranks
from grpo.workers.offload.engine import EngineResidence
from grpo.workers.protocol import Completion, SamplingParams


class VllmGenerator:
    """A `Generator` over `vllm.LLM` in this process: one device, or one rank of several that are asked the same.

    On a CPU set OMP_NUM_THREADS to the cores that this process has to itself: with more threads than free cores vLLM's
    products wait for each other and it is many times slower; vLLM cannot sleep there, and `sleep` and `wake` are only
    held against the order that they need on a GPU.
    """

    def __init__(self, config: Config, model_path: Path) -> None:
        """Start the engine on the weights of `model_path`, or on random ones under `policy.random_weights`.

        Raises:
            GenerationError: vLLM is missing, does not start, or is to have several ranks and the process group has not.
        """
        check_ranks(config.policy.generation.vllm_cfg.tensor_parallel_size)
        vllm_compat.check_installed()
        self.device = "cuda" if config.cluster.gpus_per_node else "cpu"
        self._context = context_length(config)
        self._expected = ExpectedWeights.of_folder(model_path)
        self._dtype: torch.dtype = getattr(torch, config.policy.precision)
        self._stops_on_strings = bool(config.policy.generation.stop_strings)
        self._owns_process_group = not torch.distributed.is_initialized()
        self.engine: Any = vllm_compat.start_engine(engine_arguments(config, model_path))
        self._residence = EngineResidence()
        self.weight_version = 0
        if config.policy.random_weights:
            model = load_model(model_path, dtype=self._dtype, random_weights=True, seed=config.grpo.seed)
            self.update_weights(((name, each.detach()) for name, each in model.named_parameters()), 0)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_completions: int,
        sampling: SamplingParams,
        seeds: Sequence[int],
        *,
        completions: range | None = None,
    ) -> list[list[Completion]]:
        """Sample; see `Generator.generate`. Completions end as `HfGenerator`'s do.

        `completions`: which of each prompt's are wanted, None: all.

        Each completion is a request of its own, whose seed follows from the prompt's; the prompt is computed once and
        found in the prefix cache.

        Raises:
            GenerationError: a request that the engine cannot take, or one that it did not finish.
        """
        self._residence.need_all("generate")
        self.check(prompts, num_completions, sampling, seeds)
        if not prompts:
            return []
        wanted = range(num_completions) if completions is None else completions
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts for _ in wanted]
        parameters = [
            parameters
            for prompt, seed in zip(prompts, seeds, strict=True)
            for parameters in group_parameters(sampling, len(prompt), seed, num_completions)[wanted.start : wanted.stop]
        ]
        with vllm_compat.sampling_context(self.device):
            outputs = self.engine.generate(requests, parameters, use_tqdm=False)
        sampled = [self.completion(output.outputs[0], self.weight_version) for output in outputs]
        return [sampled[start : start + len(wanted)] for start in range(0, len(sampled), len(wanted))]

    def update_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Take all weights under their Hugging Face names, tied ones once; on an error the old ones stay.

        All are copied before the first is changed.

        Raises:
            GenerationError: a name is unknown, arrives twice or is missing, or a shape differs.
        """
        self.replace_weights(weights, version, running="none")

    def replace_weights(
        self, weights: Iterator[tuple[str, Tensor]], version: int, *, running: vllm_compat.CacheOfRunning
    ) -> None:
        """`update_weights` while requests may be running; see `vllm_compat.CacheOfRunning`."""
        self._residence.need_weights("update_weights")
        checked = self._expected.checked(weights)
        staged = [(name, tensor.detach().to(self._dtype, copy=True)) for name, tensor in checked]
        vllm_compat.reload_weights(self.engine, staged, self._expected.aliases, running=running)
        self._residence.updated()
        self.weight_version = version

    def check(
        self, prompts: Sequence[Sequence[int]], num_completions: int, sampling: SamplingParams, seeds: Sequence[int]
    ) -> None:
        """Refuse what the engine cannot take. Raises GenerationError."""
        check_requests(
            prompts, num_completions, sampling, seeds, context=self._context, vocabulary=self._expected.vocabulary
        )
        if sampling.stop_strings and not self._stops_on_strings:
            raise GenerationError(
                f"sampling parameter stop_strings={sampling.stop_strings!r}: the engine was started without a "
                "tokenizer; set policy.generation.stop_strings"
            )

    def residences(self) -> dict[Resource, Residence]:
        """Where weights and KV cache are."""
        return self._residence.residences()

    def sleep(self, level: Literal[1, 2]) -> None:
        """See `Generator.sleep`."""
        if self._residence.weights == Residence.GPU and self._residence.kv_cache == Residence.ABSENT:
            self._wake_engine(["kv_cache"])  # older vLLM frees a second time what is asleep
        self._residence.fell_asleep(level)
        if self.device == "cuda":
            vllm_compat.sleep(self.engine, level)

    def wake(self, tags: Sequence[EngineTag]) -> None:
        """See `Generator.wake`."""
        self._residence.woke(tags)
        self._wake_engine(tags)

    def _wake_engine(self, tags: Sequence[EngineTag]) -> None:
        if self.device == "cuda":
            self.engine.wake_up(tags=list(tags))

    def shutdown(self) -> None:
        """End the engine; once is enough, more do no harm."""
        if self.engine is not None:
            vllm_compat.stop_engine(self.engine, owns_process_group=self._owns_process_group)
            self.engine = None

    def completion(self, output: Any, version: int, newer_from: tuple[tuple[int, int], ...] = ()) -> Completion:
        """What vLLM says of a finished request. Raises GenerationError if it did not finish as asked."""
        if output.finish_reason not in ("stop", "length"):
            raise GenerationError(f"vLLM ended a request with {output.finish_reason!r} instead of finishing it")
        logprobs = list(output.logprobs.logprobs)  # flat: one a token, since only the sampled token's was asked for
        if not all(map(math.isfinite, logprobs)):
            raise GenerationError("the model's logits are not finite: its weights have diverged")
        return Completion(list(output.token_ids), logprobs, output.finish_reason, version, newer_from)


def request_seeds(seed: int, count: int) -> list[int]:
    """Seeds of the completions of one prompt: 63 random bits each (on CPUs vLLM's generators keep 32 of them)."""
    drawn = np.random.Generator(np.random.Philox(key=seed)).integers(0, 1 << 63, size=count, dtype=np.int64)
    return [int(value) for value in drawn]


def group_parameters(sampling: SamplingParams, prompt_tokens: int, seed: int, count: int) -> list[Any]:
    """Parameters of each completion of one prompt."""
    return [
        request_parameters(one, request_seed)
        for one, request_seed in zip(
            each_completion(sampling, prompt_tokens, seed, count), request_seeds(seed, count), strict=True
        )
    ]


def request_parameters(sampling: SamplingParams, seed: int) -> Any:
    """Parameters of one completion in the words of vLLM, which returns it when it is finished."""
    from vllm import SamplingParams as VllmSamplingParams
    from vllm.sampling_params import RequestOutputKind

    return VllmSamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or 0,
        seed=seed if sampling.temperature > 0 else None,
        max_tokens=sampling.max_new_tokens,
        min_tokens=sampling.min_new_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        stop=list(sampling.stop_strings) or None,
        ignore_eos=True,  # the tokenizer's is among stop_token_ids
        logprobs=0,
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        detokenize=bool(sampling.stop_strings),
    )
