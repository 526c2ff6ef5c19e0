"""The work of one step: the sequences, and the micro-batches that the busiest data parallel rank makes of them.

Batches are cut by the trainer's own code (`grpo.batching`), on lengths dealt out evenly.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from grpo.batching.micro_batches import Dynamic, Packed, Planning, Static, plan_micro_batches
from grpo.config.schema import Config
from grpo.data.lengths import EXPONENTIAL, completion_lengths
from grpo.errors import ConfigError
from grpo.rollout.lengths import replayed_lengths
from grpo.workers.policy.options import needs_reference, planning

DEFAULT_PROMPT_TOKENS = 128
DEFAULT_COMPLETION_SHARE = 0.25  # of the most that may be generated, where no mean is given


@dataclass(frozen=True)
class Lengths:
    """What is sampled a step: prompts of one length, completions of a distribution."""

    prompt: int
    completions: tuple[int, ...]  # ascending

    @property
    def mean(self) -> float:
        return sum(self.completions) / len(self.completions)

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens of all samples."""
        return self.prompt * len(self.completions) + sum(self.completions)


@dataclass(frozen=True)
class RankWork:
    """What one data parallel rank computes in a pass over its sequences."""

    micro_batches: int
    computed_tokens: int  # with padding
    squares: float  # sum of the squared lengths that attention sees
    predicted_tokens: int

    def __add__(self, other: RankWork) -> RankWork:
        return RankWork(
            self.micro_batches + other.micro_batches,
            self.computed_tokens + other.computed_tokens,
            self.squares + other.squares,
            self.predicted_tokens + other.predicted_tokens,
        )


NO_WORK = RankWork(0, 0, 0.0, 0)


@dataclass(frozen=True)
class Workload:
    """A step's work: `training` is summed over the updates, `scoring` is one pass of log-probs."""

    lengths: Lengths
    samples: int
    updates: int
    training: RankWork
    scoring: RankWork
    scoring_passes: int  # by the policy
    reference_passes: int
    train_cap: int  # tokens of the largest micro-batch that may occur
    score_cap: int


def step_lengths(
    config: Config, *, prompt_tokens: int, completion_tokens: float | None, shape: float = EXPONENTIAL
) -> Lengths:
    """The sampled lengths: those that are replayed, pinned (min_new_tokens = max_new_tokens), or assumed.

    Raises:
        ConfigError: the mean does not fit between 1 and what the configuration leaves room for.
    """
    generation = config.policy.generation
    count = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    room = config.policy.max_total_sequence_length - prompt_tokens
    if room < 1:
        raise ConfigError(
            f"--prompt-tokens {prompt_tokens}: expected 1 to {room + prompt_tokens - 1}, less than "
            f"policy.max_total_sequence_length = {room + prompt_tokens}"
        )
    maximum = min(generation.max_new_tokens or room, room)
    replayed = replayed_lengths(config)
    if replayed is not None:
        spread = (replayed[int((at + 0.5) / count * len(replayed))] for at in range(count))
        return Lengths(prompt_tokens, tuple(min(each, maximum) for each in spread))
    if maximum >= 1 and generation.min_new_tokens >= maximum:
        return Lengths(prompt_tokens, (maximum,) * count)
    if completion_tokens is not None and not 1 <= completion_tokens <= maximum:
        raise ConfigError(
            f"--completion-tokens {completion_tokens:g}: expected 1 to {maximum}, the most that may be generated"
        )
    if not shape > 0:  # nor NaN
        raise ConfigError(f"--length-shape {shape:g}: expected a number above 0")
    mean = completion_tokens if completion_tokens is not None else max(1.0, DEFAULT_COMPLETION_SHARE * maximum)
    return Lengths(prompt_tokens, completion_lengths(count, mean=mean, maximum=maximum, shape=shape))


def step_workload(config: Config, lengths: Lengths, data_parallel: int) -> Workload:
    """Cut a step into updates, ranks and micro-batches."""
    policy, samples = config.policy, len(lengths.completions)
    updates = -(-samples // policy.train_global_batch_size)
    train, score = planning(policy, training=True), planning(policy, training=False)
    training = NO_WORK
    for update in range(updates):
        training += _busiest(lengths.completions[update::updates], lengths.prompt, train, data_parallel)
    loss = config.loss_fn
    reference = needs_reference(config)
    policy_pass = not loss.force_on_policy_ratio or (reference and loss.reference_policy_kl_in == "reward")
    return Workload(
        lengths=lengths,
        samples=samples,
        updates=updates,
        training=training,
        scoring=_busiest(lengths.completions, lengths.prompt, score, data_parallel),
        scoring_passes=int(policy_pass),
        reference_passes=int(reference),
        train_cap=_cap(train, policy.max_total_sequence_length),
        score_cap=_cap(score, policy.max_total_sequence_length),
    )


@lru_cache(maxsize=64)
def _busiest(completions: tuple[int, ...], prompt: int, batching: Planning, data_parallel: int) -> RankWork:
    """The share of the rank that is dealt the longest sequences."""
    own = list(completions[(len(completions) - 1) % data_parallel :: data_parallel])
    random.Random(0).shuffle(own)  # noqa: S311 (samples come in no order; the same one each time)
    rows = [prompt + each - 1 for each in own]  # the last token is predicted, not seen
    batches = plan_micro_batches(rows, batching)
    squares = sum(
        float(sum(rows[row] ** 2 for row in each.rows) if each.width is None else len(each.rows) * each.width**2)
        for each in batches
    )
    return RankWork(len(batches), sum(each.computed_tokens for each in batches), squares, sum(own))


def _cap(batching: Planning, longest: int) -> int:
    if isinstance(batching, Static):
        return batching.rows * longest
    assert isinstance(batching, Dynamic | Packed)
    return batching.max_tokens
