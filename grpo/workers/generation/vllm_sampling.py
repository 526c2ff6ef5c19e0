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
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo.errors import GenerationError
from grpo.workers.generation.sampled_logprobs import SampledLogprobs

_log = logging.getLogger(__name__)
ROW, SEED = "grpo_row", "grpo_seed"  # a request's extra arguments: its row of `SampledLogprobs`, its noise
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
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


@dataclasses.dataclass(frozen=True)
class Tap:
    """What a tapped engine does with a request's extra arguments."""

    recorder: SampledLogprobs
    seeded: bool  # noise follows from `SEED`, and the request needs no seed of vLLM's


def tap(engine: Any, generate: Callable[[list[Any], list[Any]], list[Any]]) -> Tap | None:
    """Record the log-probs of every request of an in-process engine that names a row in its extra arguments.

    A few tokens are then sampled with vLLM's own log-probs beside the recorded ones. Where they differ, or where vLLM
    is not built as expected, one warning says so and None is returned: vLLM's own are then to be asked for.

    Args:
        engine: a `vllm.LLM` without requests.
        generate: runs requests with parameters on it and returns what `LLM.generate` does.
    """
    try:
        (found,) = engine.collective_rpc(_tap_worker)
        difference = _difference(found, generate)
    except (_UnknownRunnerError, GenerationError) as reason:
        _log.warning("log-probs are taken from vLLM as Python objects, which is slow: %s", reason)
        return None
    if not difference <= _CLOSE:
        _log.warning("log-probs are taken from vLLM as Python objects: recorded ones differ by %g", difference)
        return None
    tapped: Tap = found
    return tapped


def _difference(found: Tap, generate: Callable[[list[Any], list[Any]], list[Any]]) -> float:
    """The largest difference between recorded log-probs and vLLM's own over a few tokens."""
    from vllm import SamplingParams

    prompts: list[list[int]] = [[0], [1, 0, 1], [1, 1]]
    rows = found.recorder.reserve(len(prompts), 3)
    parameters = [
        SamplingParams(
            temperature=temperature, seed=None if found.seeded or not temperature else 5, max_tokens=3,
            ignore_eos=True, detokenize=False, logprobs=0, flat_logprobs=True,
            extra_args={ROW: row, SEED: 5} if found.seeded else {ROW: row},
        )
        for temperature, row in zip((0.7, 0.0, 1.0), rows, strict=True)
    ]  # fmt: skip
    worst = 0.0
    outputs = generate([{"prompt_token_ids": prompt} for prompt in prompts], parameters)
    for row, output in zip(rows, outputs, strict=True):
        (completion,) = output.outputs
        recorded = np.array(found.recorder.read(row, list(completion.token_ids)))
        worst = max(worst, float(np.abs(recorded - np.array(completion.logprobs.logprobs)).max()))
    found.recorder.release(rows)
    return worst


def _tap_worker(worker: Any) -> Tap:
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


def _extra(parameters: Any, name: str) -> int:
    return -1 if parameters is None or not parameters.extra_args else int(parameters.extra_args.get(name, -1))


def _tap_v2(runner: Any) -> Tap:
    """Requests have a slot each; a batch says which slots are in it, as arrays on the host."""
    _need(runner, _V2_USED)
    if vars(runner).get("batch_sharder") is not None:  # since 0.32, if it is asked for
        raise _UnknownRunnerError("each of its ranks samples some of a batch's sequences")
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
        row_of_slot[slot] = _extra(rest[-1], ROW)
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
    return Tap(recorder, seeded=False)


def _tap_v1(runner: Any) -> Tap:
    """Requests are in the batch's order, by name."""
    _need(runner, _V1_USED)
    recorder = SampledLogprobs(runner.device, runner.max_num_reqs)
    sampler, sample = runner.sampler, runner.sampler.sample

    def places() -> NDArray[np.int64]:
        count = len(runner.input_batch.req_ids)
        lengths = runner.optimistic_seq_lens_cpu[:count].numpy()
        found: NDArray[np.int64] = (lengths - runner.input_batch.num_prompt_tokens[:count]).astype(np.int64)
        return found

    def extra(name: str) -> NDArray[np.int64]:
        return np.array(
            [_extra(runner.requests[each].sampling_params, name) for each in runner.input_batch.req_ids], dtype=np.int64
        )

    def tapped_sample(logits: Tensor, *rest: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        tokens, logprobs = sample(logits, *rest, **kwargs)
        rows = extra(ROW)
        rows[runner.discard_request_mask.np[: len(rows)]] = -1
        if (rows >= 0).any():
            every = sampler.compute_logprobs(logits) if logprobs is None else logprobs  # None: all are greedy
            recorder.record(rows, places(), tokens, every.gather(1, tokens[:, None].long())[:, 0])
        return tokens, logprobs

    sampler.sample = tapped_sample
    seeded = runner.device.type == "cpu"
    if seeded:
        _draw_by_place(sampler.topk_topp_sampler, lambda: (extra(SEED), places()))
    return Tap(recorder, seeded)


def _draw_by_place(drawing: Any, batch: Callable[[], tuple[NDArray[np.int64], NDArray[np.int64]]]) -> None:
    """Have vLLM's CPU kernel draw each row's noise from a seed of its request and place, where all requests name one.

    vLLM gives a seeded request a generator that is advanced at every step and asked row by row; on CPUs it fails when
    a seeded request's prompt is cut into chunks, where the generator is to be wound back.
    """
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    vllms_own = drawing.forward

    def forward(logits: Tensor, generators: Any, k: Tensor | None, p: Tensor | None) -> tuple[Tensor, Tensor]:
        seeds, places = batch()
        if (seeds < 0).any():
            found: tuple[Tensor, Tensor] = vllms_own(logits, generators, k, p)
            return found
        logits = apply_top_k_top_p(logits, k, p)
        every = logits.log_softmax(dim=-1, dtype=torch.float32)
        noise = torch.from_numpy(noise_seeds(seeds, places))
        tokens: Tensor = torch.ops._C.fused_gumbel_argmax(logits.float(), noise)  # noqa: SLF001
        return tokens, every

    drawing.forward = forward


def noise_seeds(seeds: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n], a number of 64 bits for each seed and place: SplitMix64's at that place of the seed's stream."""
    with np.errstate(over="ignore"):
        stream = _mixed(seeds.astype(np.uint64) + _GOLDEN)
        return _mixed(stream + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN).view(np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
