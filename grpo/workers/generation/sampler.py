"""From logits to tokens: temperature, top-k, top-p, and the probability with which each token was drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from grpo.workers.protocol import SamplingParams

NOISE_BLOCK = 256  # tokens whose uniforms are drawn at once
_BELOW_ONE = 1.0 - 2.0**-40


class Sampler:
    """Draws one token a row by inverting the cumulative distribution at a uniform number.

    The distribution is softmax(z / T), cut to the `top_k` largest and then to the smallest set whose probability
    reaches `top_p`, renormalised. At temperature 0 the token is the argmax and its probability that of softmax(z),
    unfiltered: the degenerate distribution's own probability, 1, would say nothing (vLLM reports the same).
    """

    def __init__(self, sampling: SamplingParams, device: torch.device) -> None:
        self._temperature = sampling.temperature
        self._top_k = sampling.top_k
        self._top_p = sampling.top_p
        self._stops = torch.tensor(sampling.stop_token_ids, dtype=torch.int64, device=device)

    def __call__(self, logits: Tensor, uniforms: Tensor | None, *, forbid_stops: bool) -> tuple[Tensor, Tensor]:
        """Draw.

        Args:
            logits: [N, V], any floating dtype; may be overwritten.
            uniforms: [N] float64 in [0, 1); None at temperature 0.
            forbid_stops: give the stop tokens probability 0.

        Returns:
            Tokens [N] int64 and their probabilities [N] float32.
        """
        logits = logits.float()
        if forbid_stops:
            logits[:, self._stops] = -torch.inf
        if uniforms is None:
            probabilities = logits.softmax(-1)
            tokens = logits.argmax(-1)
            return tokens, probabilities.gather(1, tokens[:, None])[:, 0]
        if self._temperature != 1.0:
            logits = logits / self._temperature
        if self._top_k is None and self._top_p == 1.0:
            return _draw(logits.softmax(-1), uniforms)
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        ranks, probabilities = _draw(self._filtered(ordered), uniforms)
        return order.gather(1, ranks[:, None])[:, 0], probabilities

    def _filtered(self, ordered: Tensor) -> Tensor:
        """[N, V] logits in descending order -> [N, V] renormalised probabilities of the kept set."""
        if self._top_k is not None and self._top_k < ordered.shape[1]:
            kth = ordered[:, self._top_k - 1 : self._top_k]
            ordered = ordered.masked_fill(ordered < kth, -torch.inf)
        probabilities = ordered.softmax(-1)
        if self._top_p < 1.0:
            before = probabilities.cumsum(-1, dtype=torch.float64) - probabilities
            probabilities = probabilities.masked_fill(before >= self._top_p, 0.0)
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities


def _draw(probabilities: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    # In float64, so that a large vocabulary's sum loses nothing; scaled by the total, so that rounding cannot lead
    # past the last token that has any probability.
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    targets = uniforms[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, targets, right=True)
    tokens.clamp_(max=probabilities.shape[1] - 1)  # NaN logits only: the caller reports them
    return tokens[:, 0], probabilities.gather(1, tokens)[:, 0]


class Noise:
    """Uniform numbers for each completion of each prompt, from the prompt's seed alone.

    A prompt's numbers do not depend on the other prompts or on how they are batched. Each prompt has a Philox stream
    keyed by its seed (torch's CPU generator keeps only 32 bits of a seed), read in blocks of [G, NOISE_BLOCK].
    """

    def __init__(self, seeds: Sequence[int], num_completions: int, length: int) -> None:
        self._streams = [np.random.Generator(np.random.Philox(key=seed)) for seed in seeds]
        self._num_completions = num_completions
        self._length = length

    def block(self, rows: Tensor, start: int, device: torch.device) -> Tensor:
        """Uniforms for the NOISE_BLOCK tokens from `start`, which goes through the multiples of NOISE_BLOCK in order.

        Args:
            rows: [N] int64 on the CPU: prompt * G + completion of each row wanted.
            start: first token.
            device: of the result.

        Returns:
            [block, N] float64 in [0, 1), where block is NOISE_BLOCK or what is left of the length.
        """
        width = min(NOISE_BLOCK, self._length - start)
        drawn = np.stack([stream.random((self._num_completions, width)) for stream in self._streams])
        uniforms = torch.from_numpy(drawn).view(-1, width).clamp_(max=_BELOW_ONE)
        return uniforms[rows].t().contiguous().to(device)
