"""The decode loop: one prefill per prompt, one forward per token for all completions of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo.errors import GenerationError
from grpo.workers.generation.decoder import Decoder
from grpo.workers.generation.sampler import NOISE_BLOCK, Noise, Sampler
from grpo.workers.generation.stopping import StopStrings
from grpo.workers.protocol import FinishReason, SamplingParams

# Tokens between looks at what has ended: every look waits for the GPU, and decodes text where there are stop strings.
_LOOK_EVERY = {"cpu": 1, "cuda": 16}
_LOOK_EVERY_WITH_STRINGS = 16


@dataclass(frozen=True)
class Job:
    """What is decoded together: completions `first` ... `first + count - 1` of the G completions of each prompt."""

    indices: Sequence[int]  # of the prompts in the request
    prompts: Sequence[Sequence[int]]
    seeds: Sequence[int]
    limits: Sequence[Sequence[int]]  # of each prompt: new tokens that each of its completions here may have
    num_completions: int  # G
    first: int
    count: int


class Sampled:
    """What a job sampled, row by row; rows are prompt-major."""

    def __init__(self, tokens: Tensor, logprobs: Tensor, lengths: Tensor, stopped: Tensor) -> None:
        self._tokens: list[list[int]] = tokens.tolist()
        self._logprobs: list[list[float]] = logprobs.tolist()
        self._lengths: list[int] = lengths.tolist()
        self._stopped: list[bool] = stopped.tolist()

    def completion(self, row: int) -> tuple[list[int], list[float], FinishReason]:
        length = self._lengths[row]
        reason: FinishReason = "stop" if self._stopped[row] else "length"
        return self._tokens[row][:length], self._logprobs[row][:length], reason


@torch.inference_mode()
def decode(
    decoder: Decoder, job: Job, sampling: SamplingParams, device: torch.device, stop_strings: StopStrings | None
) -> Sampled:
    """Sample all completions of a job.

    Raises:
        GenerationError: the model's logits are not finite.
    """
    run = _Run(job, sampling, device, stop_strings)
    logits = decoder.prefill(*_padded(job.prompts, device))
    rows = torch.arange(len(job.prompts), device=device).repeat_interleave(job.count)
    logits = logits[rows]
    if run.steps > 1:
        decoder.fan_out(rows, run.steps - 1)
    for step in range(run.steps):
        tokens = run.sample(logits, step)
        if step + 1 == run.steps:
            break
        survivors = run.survivors(step, tokens)
        if survivors is not None:
            if not len(survivors):
                break
            decoder.keep(survivors)
            tokens = tokens[survivors]
        logits = decoder.step(tokens)
    decoder.clear()
    return run.result()


class _Run:
    """The rows of a job while they are sampled: what came out, and which of them still go on."""

    def __init__(self, job: Job, sampling: SamplingParams, device: torch.device, strings: StopStrings | None) -> None:
        limits = [limit for group in job.limits for limit in group]
        self.steps = max(limits)
        self._sampling, self._device, self._strings = sampling, device, strings
        self._sampler = Sampler(sampling, device)
        self._noise = (
            Noise(job.seeds, job.num_completions, sampling.max_new_tokens) if sampling.temperature > 0 else None
        )
        count = len(job.prompts) * job.count
        self._all_limits = torch.tensor(limits, device=device)
        self._limits = self._all_limits if min(limits) < self.steps else None  # [active]
        self._stops = torch.tensor(sampling.stop_token_ids, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(count, self.steps, dtype=torch.int64, device=device)
        self._probabilities = torch.ones(count, self.steps, dtype=torch.float32, device=device)
        self._active: Tensor | None = None  # [active] rows; None: all
        self._done = torch.zeros(count, dtype=torch.bool, device=device)  # [active]
        self._uniforms = torch.empty(0)
        prompts = torch.arange(len(job.prompts))[:, None] * job.num_completions
        self._noise_rows = (prompts + torch.arange(job.first, job.first + job.count)).flatten()
        self._look_every = _LOOK_EVERY_WITH_STRINGS if strings else _LOOK_EVERY[device.type]
        self._can_end = self._limits is not None or (
            (bool(sampling.stop_token_ids) or strings is not None) and sampling.min_new_tokens < self.steps
        )

    def sample(self, logits: Tensor, step: int) -> Tensor:
        """Draw the tokens [active] of this step and record them."""
        if self._noise is not None and step % NOISE_BLOCK == 0:
            rows = self._noise_rows if self._active is None else self._noise_rows[self._active.cpu()]
            self._uniforms = self._noise.block(rows, step, self._device)
        uniforms = None if self._noise is None else self._uniforms[step % NOISE_BLOCK]
        forbid = step < self._sampling.min_new_tokens
        tokens, probabilities = self._sampler(logits, uniforms, forbid_stops=forbid)
        if self._active is None:
            self._tokens[:, step] = tokens
            self._probabilities[:, step] = probabilities
        else:
            self._tokens[self._active, step] = tokens
            self._probabilities[self._active, step] = probabilities
        return tokens

    def survivors(self, step: int, tokens: Tensor) -> Tensor | None:
        """Indices among the active rows of those to go on with, or None to go on with all.

        Ended rows are dropped once they are at least half: what dropping copies is then less than what it saves.
        """
        if not self._can_end:
            return None
        if step >= self._sampling.min_new_tokens and len(self._stops):
            self._done |= (tokens[:, None] == self._stops).any(1)
        if self._limits is not None:
            self._done |= self._limits <= step + 1
        if (step + 1) % self._look_every:
            return None
        if self._strings is not None:
            self._look_for_strings(step, self._strings)
        ended = int(self._done.sum())
        if 2 * ended < len(self._done):
            return None
        keep = (~self._done).nonzero()[:, 0]
        self._active = keep if self._active is None else self._active[keep]
        self._done = self._done[keep]
        if self._limits is not None:
            self._limits = self._limits[keep]
        if self._noise is not None:
            self._uniforms = self._uniforms[:, keep]
        return keep

    def _look_for_strings(self, step: int, strings: StopStrings) -> None:
        going = (~self._done).nonzero()[:, 0]
        rows = going if self._active is None else self._active[going]
        texts: list[list[int]] = self._tokens[rows, : step + 1].tolist()
        self._done[going] = torch.tensor([strings.cut(tokens) is not None for tokens in texts], device=self._device)

    def result(self) -> Sampled:
        if not bool(self._probabilities.isfinite().all()):
            raise GenerationError(
                "the model's logits are not finite: its weights have diverged or cannot be computed in this precision"
            )
        past_end = self.steps + 1
        lengths = torch.full_like(self._all_limits, past_end)
        if len(self._stops):
            is_stop = (self._tokens[:, :, None] == self._stops).any(-1)
            is_stop[:, : self._sampling.min_new_tokens] = False
            lengths = torch.where(is_stop.any(1), is_stop.int().argmax(1) + 1, lengths)
        if self._strings is not None:
            reach = torch.minimum(lengths, self._all_limits).tolist()
            rows = zip(self._tokens.tolist(), reach, strict=True)
            cuts = [self._strings.cut(tokens[:length]) for tokens, length in rows]
            found = torch.tensor([past_end if cut is None else cut for cut in cuts], device=self._device)
            lengths = torch.minimum(lengths, found)
        stopped = lengths <= self._all_limits
        lengths = torch.minimum(lengths, self._all_limits)
        return Sampled(self._tokens, self._probabilities.log(), lengths, stopped)


def _padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts padded on the left with 0, [P, L] int64, and their lengths [P] int64."""
    lengths = [len(prompt) for prompt in prompts]
    width = max(lengths)
    rows = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    return torch.tensor(rows, device=device), torch.tensor(lengths, device=device)
