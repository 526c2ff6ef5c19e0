"""Where vLLM's workers are tapped for the log-probs of sampled tokens. Knows vLLM's two model runners, and only that.

vLLM returns log-probs as Python objects made for each token of each request, which costs as much as a small model's
forward. Here the value that vLLM itself would return is taken from the sampler as a tensor. Its two model runners keep
their state in different places, and both are older than 0.25 and still in 0.32: "V2", which runs dense models on GPUs
(`vllm/v1/worker/gpu/`), and "V1", which runs on CPUs (`vllm/v1/worker/gpu_model_runner.py`).
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from grpo.errors import GenerationError
from grpo.workers.generation.sampled_logprobs import SampledLogprobs

_log = logging.getLogger(__name__)
ROW = "grpo_row"  # of `SampledLogprobs`, in a request's extra arguments
_CLOSE = 1e-6  # between a recorded log-prob and the engine's own

# What is used of each runner. A release that lacks any of it is not tapped.
_V1_MODULE, _V2_MODULE = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"
_V1_USED = (
    "sampler.sample", "sampler.compute_logprobs", "requests", "input_batch.req_ids", "input_batch.num_prompt_tokens",
    "optimistic_seq_lens_cpu", "discard_request_mask.np", "max_num_reqs", "device",
)  # fmt: skip
_V2_USED = (
    "sample", "sampler.sample", "sampler.add_request", "req_states.prompt_len.np", "max_num_reqs", "device",
)  # fmt: skip
_V2_BATCH = {"idx_mapping_np", "num_computed_tokens_np", "num_scheduled_tokens", "prefill_len_np"}


class _UnknownRunnerError(Exception):
    """The runner is not built as either of those that are known."""


def tap(engine: Any, generate: Callable[[list[Any], list[Any]], list[Any]]) -> SampledLogprobs | None:
    """Record the log-probs of every request of an in-process engine that names a row in its extra arguments.

    A few tokens are then sampled with vLLM's own log-probs beside the recorded ones. Where they differ, or where vLLM
    is not built as expected, one warning says so and None is returned: vLLM's own are then to be asked for.

    Args:
        engine: a `vllm.LLM` without requests.
        generate: runs requests with parameters on it and returns what `LLM.generate` does.
    """
    try:
        (recorder,) = engine.collective_rpc(_tap_worker)
        difference = _difference(recorder, generate)
    except (_UnknownRunnerError, GenerationError) as reason:
        _log.warning("log-probs are taken from vLLM as Python objects, which is slow: %s", reason)
        return None
    if not difference <= _CLOSE:
        _log.warning("log-probs are taken from vLLM as Python objects: recorded ones differ by %g", difference)
        return None
    found: SampledLogprobs = recorder
    return found


def _difference(recorder: SampledLogprobs, generate: Callable[[list[Any], list[Any]], list[Any]]) -> float:
    """The largest difference between recorded log-probs and vLLM's own over a few tokens."""
    from vllm import SamplingParams

    prompts: list[list[int]] = [[0], [1, 0, 1], [1, 1]]
    rows = recorder.reserve(len(prompts), 3)
    parameters = [
        SamplingParams(
            temperature=temperature, seed=5, max_tokens=3, ignore_eos=True, detokenize=False, logprobs=0,
            flat_logprobs=True, extra_args={ROW: row},
        )
        for temperature, row in zip((0.7, 0.0, 1.0), rows, strict=True)
    ]  # fmt: skip
    worst = 0.0
    outputs = generate([{"prompt_token_ids": prompt} for prompt in prompts], parameters)
    for row, output in zip(rows, outputs, strict=True):
        (completion,) = output.outputs
        recorded = np.array(recorder.read(row, list(completion.token_ids)))
        worst = max(worst, float(np.abs(recorded - np.array(completion.logprobs.logprobs)).max()))
    recorder.release(rows)
    return worst


def _tap_worker(worker: Any) -> SampledLogprobs:
    runner = worker.model_runner
    families = {each.__module__: each for each in type(runner).__mro__}
    if _V2_MODULE in families:
        return _tap_v2(runner)
    if _V1_MODULE in families:
        return _tap_v1(runner)
    raise _UnknownRunnerError(f"its model runner is a {type(runner).__module__}.{type(runner).__name__}")


def _need(runner: Any, paths: Sequence[str]) -> None:
    for path in paths:
        try:
            attrgetter(path)(runner)
        except AttributeError as error:
            raise _UnknownRunnerError(f"its model runner has no {path}") from error


def _row(parameters: Any) -> int:
    return -1 if parameters is None or not parameters.extra_args else int(parameters.extra_args.get(ROW, -1))


def _tap_v2(runner: Any) -> SampledLogprobs:
    """Requests have a slot each; a batch says which slots are in it, as arrays on the host."""
    _need(runner, _V2_USED)
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.sample.logprob import compute_token_logprobs

    missing = _V2_BATCH - {field.name for field in dataclasses.fields(InputBatch)}
    if missing:
        raise _UnknownRunnerError(f"its batches have no {min(missing)}")
    last = list(inspect.signature(runner.sampler.add_request).parameters)[-1]
    if last != "sampling_params":
        raise _UnknownRunnerError(f"its sampler is given {last} of a request instead of its sampling parameters")
    recorder = SampledLogprobs(runner.device, runner.max_num_reqs)
    row_of_slot = np.full(runner.max_num_reqs, -1, dtype=np.int64)
    sampled: list[tuple[Tensor, Tensor]] = []  # of the step that is being sampled
    add_request, sample, sample_batch = runner.sampler.add_request, runner.sampler.sample, runner.sample

    def tapped_add_request(slot: int, *rest: Any) -> None:
        row_of_slot[slot] = _row(rest[-1])
        add_request(slot, *rest)

    def tapped_sample(*args: Any, **kwargs: Any) -> Any:
        tokens, processed_logits = sample(*args, **kwargs)
        sampled[:] = [(tokens, processed_logits)]
        return tokens, processed_logits

    def tapped_sample_batch(hidden_states: Tensor, batch: Any, *rest: Any) -> Any:
        result = sample_batch(hidden_states, batch, *rest)
        tokens, processed_logits = sampled.pop()
        lengths = batch.num_computed_tokens_np + batch.num_scheduled_tokens
        # A request in the middle of its prompt, or of what a preemption made it compute again, samples in vain.
        rows = np.where(lengths >= batch.prefill_len_np, row_of_slot[batch.idx_mapping_np], -1)
        if (rows >= 0).any():
            places = (lengths - runner.req_states.prompt_len.np[batch.idx_mapping_np]).astype(np.int64)
            recorder.record(rows, places, tokens, compute_token_logprobs(processed_logits, tokens[:, None])[:, 0])
        return result

    runner.sampler.add_request = tapped_add_request
    runner.sampler.sample = tapped_sample
    runner.sample = tapped_sample_batch
    return recorder


def _tap_v1(runner: Any) -> SampledLogprobs:
    """Requests are in the batch's order, by name."""
    _need(runner, _V1_USED)
    recorder = SampledLogprobs(runner.device, runner.max_num_reqs)
    sampler, sample = runner.sampler, runner.sampler.sample

    def tapped_sample(logits: Tensor, *rest: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        tokens, logprobs = sample(logits, *rest, **kwargs)
        names = runner.input_batch.req_ids
        lengths: NDArray[Any] = runner.optimistic_seq_lens_cpu[: len(names)].numpy()
        rows = np.array([_row(runner.requests[name].sampling_params) for name in names], dtype=np.int64)
        rows[runner.discard_request_mask.np[: len(names)]] = -1
        if (rows >= 0).any():
            places = (lengths - runner.input_batch.num_prompt_tokens[: len(names)]).astype(np.int64)
            every = sampler.compute_logprobs(logits) if logprobs is None else logprobs  # None: all are greedy
            recorder.record(rows, places, tokens, every.gather(1, tokens[:, None].long())[:, 0])
        return tokens, logprobs

    sampler.sample = tapped_sample
    return recorder
