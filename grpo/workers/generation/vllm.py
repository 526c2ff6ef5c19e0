"""The vLLM engine, in the process that makes it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from grpo.config.schema import Config
from grpo.errors import GenerationError
from grpo.models.loading import load_model
from grpo.placement.resources import EngineTag, Residence, Resource
from grpo.workers.generation import vllm_compat, vllm_sampling, vllm_steps
from grpo.workers.generation.expected_weights import ExpectedWeights
from grpo.workers.generation.replay import each_completion
from grpo.workers.generation.requests import check_requests
from grpo.workers.generation.sampled_logprobs import SampledLogprobs, finite
from grpo.workers.generation.vllm_arguments import context_length, engine_arguments
from grpo.workers.generation.vllm_parallel import check_ranks
from grpo.workers.offload.engine import EngineResidence
from grpo.workers.protocol import Completion, SamplingParams, WeightsFrom

_log = logging.getLogger(__name__)


class VllmGenerator:
    """A `Generator` over `vllm.LLM` in this process: one device, or one rank of several that are asked the same.

    On a CPU set OMP_NUM_THREADS to the cores that this process has to itself: with more threads than free cores vLLM's
    products wait for each other and it is many times slower; vLLM cannot sleep there, and `sleep` and `wake` are only
    held against the order that they need on a GPU.
    """

    def __init__(
        self,
        config: Config,
        model_path: Path,
        arguments: dict[str, Any] | None = None,
        *,
        weights_from: WeightsFrom = "folder",
    ) -> None:
        """Start the engine on the weights of `model_path`, or on random ones under `policy.random_weights`.

        Args:
            config: of the run.
            model_path: folder of the model.
            arguments: of `vllm.LLM`; None: those that follow from `config`.
            weights_from: with "refit" no weights are read or drawn, and nothing is generated before the first update.

        Raises:
            GenerationError: vLLM is missing, does not start, or is to have several ranks and the process group has not.
        """
        check_ranks(config.policy.generation.vllm_cfg.tensor_parallel_size)
        vllm_compat.check_installed()
        self.device = "cuda" if config.cluster.gpus_per_node else "cpu"
        self._context = context_length(config)
        self.expected = ExpectedWeights.of_folder(model_path)
        self._dtype: torch.dtype = getattr(torch, config.policy.precision)
        self._stops_on_strings = bool(config.policy.generation.stop_strings)
        self._owns_process_group = not torch.distributed.is_initialized()
        began = time.perf_counter()
        self.engine: Any = vllm_compat.start_engine(
            arguments or engine_arguments(config, model_path, weights_from=weights_from)
        )
        started = time.perf_counter()
        tap = vllm_sampling.tap(self.engine, self._run)
        self._recorder: SampledLogprobs | None = None if tap is None else tap.recorder
        self._seeded = tap is not None and tap.seeded
        self.short_steps = not self._stops_on_strings and vllm_steps.shorten(self.engine)
        self._routes = vllm_compat.weight_routes(self.engine, self.expected.shapes, self._dtype, self.device)
        _log.info(
            "vLLM started in %.1f s, its log-probs compared and its loader watched in %.1f s",
            started - began, time.perf_counter() - started,
        )  # fmt: skip
        self._unusable: str | None = None  # why nothing may be generated
        self._residence = EngineResidence()
        self.weight_version = 0
        if weights_from == "refit":
            vllm_compat.check_only_parameters(self.engine)
            self._unusable = "the engine was started without weights: they come with the first update"
        elif config.policy.random_weights:
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
        drawn = [
            each
            for prompt, seed in zip(prompts, seeds, strict=True)
            for each in request_samplings(sampling, len(prompt), seed, num_completions)[wanted.start : wanted.stop]
        ]
        rows = self.reserve(len(requests), sampling)
        parameters = [self.request_parameters(*each, row) for each, row in zip(drawn, rows, strict=True)]
        try:
            sampled = [
                self.completion(output.outputs[0], row, self.weight_version)
                for output, row in zip(self._run(requests, parameters), rows, strict=True)
            ]
        finally:
            self.release(rows)
        return [sampled[start : start + len(wanted)] for start in range(0, len(sampled), len(wanted))]

    def _run(self, requests: list[Any], parameters: list[Any]) -> list[Any]:
        with vllm_compat.sampling_context(self.device):
            outputs: list[Any] = self.engine.generate(requests, parameters, use_tqdm=False)
        return outputs

    def update_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Take all weights under their Hugging Face names, tied ones once.

        On a GPU they replace the old ones as they arrive, by copies on the current stream that are complete on return;
        after an error half-way the engine generates nothing until an update succeeds. On a CPU, where the engine packs
        its weights, all are copied before the first is changed, and on an error the old ones stay.

        Raises:
            GenerationError: a name is unknown, arrives twice or is missing, or a shape differs.
        """
        self.replace_weights(weights, version, running="none")

    def replace_weights(
        self, weights: Iterator[tuple[str, Tensor]], version: int, *, running: vllm_compat.CacheOfRunning
    ) -> None:
        """`update_weights` while requests may be running; see `vllm_compat.CacheOfRunning`."""
        self._residence.need_weights("update_weights")
        if self._routes is None:
            checked = self.expected.checked(weights)
            staged = [(name, tensor.detach().to(self._dtype, copy=True)) for name, tensor in checked]
            vllm_compat.reload_weights(self.engine, staged, self.expected.aliases)
        else:
            self._unusable = (
                "the last weight update failed half-way: the engine's weights are of two versions until one succeeds"
            )
            for name, tensor in self.expected.checked(weights, in_place=True):
                self._routes.load(name, tensor)
            self._routes.finish()
        self._unusable = None
        vllm_compat.forget_prefixes(self.engine, running)
        self._residence.updated()
        self.weight_version = version

    def check(
        self, prompts: Sequence[Sequence[int]], num_completions: int, sampling: SamplingParams, seeds: Sequence[int]
    ) -> None:
        """Refuse what the engine cannot take. Raises GenerationError."""
        self.check_weights()
        check_requests(
            prompts, num_completions, sampling, seeds, context=self._context, vocabulary=self.expected.vocabulary
        )
        if sampling.stop_strings and not self._stops_on_strings:
            raise GenerationError(
                f"sampling parameter stop_strings={sampling.stop_strings!r}: the engine was started without a "
                "tokenizer; set policy.generation.stop_strings"
            )

    def check_weights(self) -> None:
        """Refuse to go on without weights or with those of two versions. Raises GenerationError."""
        if self._unusable is not None:
            raise GenerationError(self._unusable)

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

    @property
    def recorded(self) -> bool:
        """Whether log-probs are recorded in the worker instead of returned by vLLM."""
        return self._recorder is not None

    @property
    def in_place(self) -> bool:
        """Whether weights are copied into the live parameters as they arrive."""
        return self._routes is not None

    @contextmanager
    def own_logprobs(self) -> Iterator[None]:
        """Have vLLM return log-probs itself, to compare."""
        recorder, self._recorder = self._recorder, None
        try:
            yield
        finally:
            self._recorder = recorder

    def reserve(self, count: int, sampling: SamplingParams) -> Sequence[int | None]:
        """Where the log-probs of `count` requests are recorded; None: vLLM returns them itself."""
        if self._recorder is None:
            return [None] * count
        return self._recorder.reserve(count, min(sampling.max_new_tokens, self._context))

    def release(self, rows: Sequence[int | None]) -> None:
        """The places of requests that are over."""
        if self._recorder is not None:
            self._recorder.release(row for row in rows if row is not None)

    def request_parameters(self, sampling: SamplingParams, seed: int, row: int | None) -> Any:
        """Parameters of one completion in the words of vLLM, which returns it when it is finished.

        `row` is where its log-probs are recorded; None: vLLM returns them.
        """
        from vllm import SamplingParams as VllmSamplingParams
        from vllm.sampling_params import RequestOutputKind

        extra = {} if row is None else {vllm_sampling.ROW: row}
        if self._seeded:
            extra[vllm_sampling.SEED] = seed
        return VllmSamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or 0,
            seed=seed if sampling.temperature > 0 and not self._seeded else None,
            max_tokens=sampling.max_new_tokens,
            min_tokens=sampling.min_new_tokens,
            stop_token_ids=list(sampling.stop_token_ids),
            stop=list(sampling.stop_strings) or None,
            ignore_eos=True,  # the tokenizer's is among stop_token_ids
            logprobs=0 if row is None else None,
            flat_logprobs=row is None,
            extra_args=extra or None,
            skip_clone=True,  # made for this request alone
            output_kind=RequestOutputKind.FINAL_ONLY,
            detokenize=bool(sampling.stop_strings),
        )

    def completion(
        self, output: Any, row: int | None, version: int, newer_from: tuple[tuple[int, int], ...] = ()
    ) -> Completion:
        """What vLLM says of a finished request. Raises GenerationError if it did not finish as asked."""
        if output.finish_reason not in ("stop", "length"):
            raise GenerationError(f"vLLM ended a request with {output.finish_reason!r} instead of finishing it")
        tokens = list(output.token_ids)
        if self._recorder is None or row is None:
            logprobs = finite(output.logprobs.logprobs)  # flat: one a token, since no others were asked for
        else:
            logprobs = self._recorder.read(row, tokens)
        return Completion(tokens, logprobs, output.finish_reason, version, newer_from)


def request_seeds(seed: int, count: int) -> list[int]:
    """Seeds of the completions of one prompt: 63 random bits each (on CPUs vLLM's generators keep 32 of them)."""
    drawn = np.random.Generator(np.random.Philox(key=seed)).integers(0, 1 << 63, size=count, dtype=np.int64)
    return [int(value) for value in drawn]


def request_samplings(
    sampling: SamplingParams, prompt_tokens: int, seed: int, count: int
) -> list[tuple[SamplingParams, int]]:
    """How each completion of one prompt is sampled, and its own seed."""
    each = each_completion(sampling, prompt_tokens, seed, count)
    return list(zip(each, request_seeds(seed, count), strict=True))
