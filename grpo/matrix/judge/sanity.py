"""What makes a run worthless whatever its speed (rule 5): gaps, NaN, nothing learned, times that do not add up."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo.matrix.judge.evidence import OTHER, PHASE_METRICS, TOKENS, TOTAL
from grpo.matrix.judge.verdict import Finding

MFU = "performance/mfu"
GRAD_NORM = "train/grad_norm"
ADVANTAGE = "train/advantage_abs_mean"
# Every run has these in every step, whatever its recipe.
REQUIRED = (
    TOTAL, *PHASE_METRICS, OTHER,
    "performance/tokens_per_second_per_gpu", "performance/generated_tokens_per_second",
    TOKENS, "rollout/samples", "rollout/completion_length_p95", "rollout/completion_length_max",
    "rollout/prompt_tokens_per_sample", "rollout/truncated_fraction", "rollout/reward_failures",
    "rollout/generation_batches",
    "train/reward", "train/raw_reward", "train/zero_std_fraction", ADVANTAGE, "train/loss", "train/policy_loss",
    GRAD_NORM, "train/learning_rate", "train/probs_ratio", "train/probs_ratio_min", "train/probs_ratio_max",
    "train/clip_fraction", "train/approx_entropy", "train/token_mult_prob_error", "train/token_mult_prob_error_p99",
    "train/token_mult_prob_error_max", "train/logprob_difference", "train/logprob_difference_p99",
    "train/logprob_difference_max", "train/gen_kl_error",
    "train/sampling_importance_ratio", "train/nonfinite_importance_weights", "train/trained_tokens",
    "train/trained_sequences", "train/padding_efficiency",
    "memory/rss_gib",
)  # fmt: skip

_SECONDS = 1e-3  # by which sums of a step's times may differ, besides a thousandth

Record = Mapping[str, Any]


def check_values(training: Sequence[Record], required: Iterable[str]) -> list[Finding]:
    """Missing and non-finite metrics, and figures that cannot be, over all training steps."""
    return [
        *_missing(training, required),
        *_not_finite(training),
        *_nothing_learned(training),
        *_mfu(training),
        *_times(training),
    ]


def _missing(training: Sequence[Record], required: Iterable[str]) -> Iterable[Finding]:
    for metric in dict.fromkeys(required):
        steps = [record["step"] for record in training if record.get(metric) is None]
        if steps:
            everywhere = len(steps) == len(training)
            yield _failure(metric, f"{metric} is missing {'throughout' if everywhere else _steps(steps)}")


def _not_finite(training: Sequence[Record]) -> Iterable[Finding]:
    bad: dict[str, list[int]] = {}
    for record in training:
        # The sum of a step is finite where all its values are, which one step after another says far sooner.
        if math.isfinite(sum(value for value in record.values() if value is not None)):
            continue
        for metric, value in record.items():
            if isinstance(value, float) and not math.isfinite(value):
                bad.setdefault(metric, []).append(record["step"])
    for metric, steps in bad.items():
        yield _failure(metric, f"{metric} is NaN or infinite {_steps(steps)}")


def _nothing_learned(training: Sequence[Record]) -> Iterable[Finding]:
    for metric, meaning in ((GRAD_NORM, "no gradient"), (ADVANTAGE, "no advantage other than 0")):
        values = [record[metric] for record in training if record.get(metric) is not None]
        if values and not any(values):
            yield _failure(metric, f"{metric} is 0 throughout: there is {meaning}")


def _mfu(training: Sequence[Record]) -> Iterable[Finding]:
    steps = [record["step"] for record in training if record.get(MFU) is not None and not 0 < record[MFU] < 1]
    if steps:
        yield _failure(MFU, f"{MFU} is not between 0 and 1 {_steps(steps)}", rule=2)


def _times(training: Sequence[Record]) -> Iterable[Finding]:
    negative: dict[str, list[int]] = {}
    unequal = []
    least = {
        metric: -_SECONDS if metric == OTHER else 0.0
        for metric in sorted(set().union(*training))
        if metric.startswith("timing/")
    }
    for record in training:
        phases = [record.get(metric) or 0.0 for metric in PHASE_METRICS]
        total, other = record.get(TOTAL), record.get(OTHER)
        for metric, lowest in least.items():
            value = record.get(metric)
            if value is not None and value < lowest:
                negative.setdefault(metric, []).append(record["step"])
        if total is None or other is None:
            continue
        if total <= 0:
            negative.setdefault(TOTAL, []).append(record["step"])
        if abs(total - sum(phases) - other) > _SECONDS + 1e-3 * abs(total):
            unequal.append(record["step"])
    for metric, steps in negative.items():
        yield _failure(metric, f"{metric} takes no time or less {_steps(steps)}", rule=2)
    if unequal:
        yield _failure(TOTAL, f"the phases and timing/other do not sum to timing/total {_steps(unequal)}", rule=2)


def _failure(metric: str, message: str, *, rule: int = 5) -> Finding:
    return Finding(rule, metric, message, "correctness")


def _steps(steps: Sequence[int]) -> str:
    return f"in step {steps[0]}" if len(steps) == 1 else f"in {len(steps)} steps, the first of them {steps[0]}"
