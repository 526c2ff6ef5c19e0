"""Lengths that are replayed: each completion gets as many tokens as a distribution says, whatever it says itself.

A model that talks longer is not slower, and a model with random weights never stops: where speed is measured, lengths
are drawn. A completion's length follows from the seed of its prompt and its number in the group, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grpo.workers.protocol import Completion, SamplingParams

_STREAM = 0x6C656E67746873  # apart from what the same seed samples


def drawn_lengths(lengths: Sequence[int], seed: int, count: int) -> list[int]:
    """Lengths of the `count` completions of one prompt, from the distribution's ascending `lengths`.

    Systematic sampling: one uniform number places `count` equally spaced points on the distribution, which are dealt to
    the completions in a random order. So each group has the distribution's short and long ones, and a step's mean
    scatters far less than that of independent draws.
    """
    random = np.random.Generator(np.random.Philox(key=seed ^ _STREAM))
    points = (np.arange(count) + random.random()) / count
    places = (random.permutation(points) * len(lengths)).astype(np.int64)
    return [lengths[place] for place in places]


def each_completion(sampling: SamplingParams, prompt_tokens: int, seed: int, count: int) -> list[SamplingParams]:
    """How each completion of one prompt is sampled: with lengths replayed, exactly so many tokens and no stop.

    Stop tokens are sampled like any other, so that log-probs are of the distribution that the trainer computes.
    """
    if sampling.replay is None:
        return [sampling] * count
    room = _room(sampling, prompt_tokens)
    return [
        replace(
            sampling, max_new_tokens=min(length, room), min_new_tokens=0, stop_token_ids=(), stop_strings=(),
            replay=None,
        )
        for length in drawn_lengths(sampling.replay.lengths, seed, count)
    ]  # fmt: skip


def ended(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[Completion]], sampling: SamplingParams
) -> list[list[Completion]]:
    """Completions of replayed lengths as if each had stopped by itself, but for those that the limit cut.

    An engine says of all of them that they ended at their length.
    """
    if sampling.replay is None:
        return [list(group) for group in completions]
    return [
        [
            replace(each, finish_reason="stop") if len(each.token_ids) < _room(sampling, len(prompt)) else each
            for each in group
        ]
        for prompt, group in zip(prompts, completions, strict=True)
    ]


def _room(sampling: SamplingParams, prompt_tokens: int) -> int:
    assert sampling.replay is not None
    return min(sampling.max_new_tokens, sampling.replay.context - prompt_tokens)
