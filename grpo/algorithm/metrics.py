"""The one definition of each metric of the update, and their sums over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from grpo.algorithm.aggregation import Denominators, inverse

Denominator = Literal["tokens", "sequences", "none"]


@dataclass(frozen=True)
class MetricSpec:
    """What a sum is divided by, over the whole optimizer batch, and what the figure means."""

    denominator: Denominator
    description: str


_SEQUENCE_ERROR = "over sequences, of a sequence's mean exp(|l_gen - l_old|)"
_SEQUENCE_DIFFERENCE = "over sequences, of a sequence's mean |l_old - l_gen|"

METRICS: Mapping[str, MetricSpec] = {
    "loss": MetricSpec("none", "the objective; its denominators are in it already"),
    "policy_loss": MetricSpec("none", "the loss without KL term and entropy bonus"),
    "kl_loss": MetricSpec("none", "coefficient x aggregated KL, as it stands in the loss"),
    "entropy_loss": MetricSpec("none", "minus coefficient x aggregated entropy, as it stands in the loss"),
    "trained_tokens": MetricSpec("none", "tokens under the mask"),
    "trained_sequences": MetricSpec("none", "sequences with at least one trained token"),
    "probs_ratio": MetricSpec("tokens", "mean rho = exp(l - l_old); GSPO: the sequence's ratio"),
    "probs_ratio_min": MetricSpec("none", "smallest rho"),
    "probs_ratio_max": MetricSpec("none", "largest rho"),
    "clip_fraction": MetricSpec("tokens", "share of tokens whose loss the clip or the dual clip decides"),
    "approx_entropy": MetricSpec("tokens", "-mean exp(l - l_gen) l: entropy from the sampled tokens alone"),
    "entropy": MetricSpec("tokens", "mean exact entropy of softmax(z / T)"),
    "kl_penalty": MetricSpec("tokens", "mean KL estimate to the reference, unweighted, without its coefficient"),
    "token_mult_prob_error": MetricSpec("tokens", "mean exp(|l_gen - l_old|); over 1.05 the framework is suspect"),
    "token_mult_prob_error_max": MetricSpec("none", f"largest {_SEQUENCE_ERROR}"),
    "token_mult_prob_error_p99": MetricSpec("none", f"99th percentile {_SEQUENCE_ERROR}"),
    "logprob_difference": MetricSpec("tokens", "mean |l_old - l_gen|"),
    "logprob_difference_max": MetricSpec("none", f"largest {_SEQUENCE_DIFFERENCE}"),
    "logprob_difference_p99": MetricSpec("none", f"99th percentile {_SEQUENCE_DIFFERENCE}"),
    "gen_kl_error": MetricSpec("tokens", "k3 of the engine's against the trainer's log-probs"),
    "sampling_importance_ratio": MetricSpec("tokens", "mean importance weight, whether or not it is applied"),
    "is_oob_ratio": MetricSpec("tokens", "share of tokens outside the correction's bounds"),
    "is_oob_sequence_ratio": MetricSpec("sequences", "share of sequences that seq-mask-tis drops"),
    "nonfinite_importance_weights": MetricSpec("none", "trained tokens of weight 0: not finite"),
    "grad_norm": MetricSpec("none", "norm of the whole gradient before clipping, replicated parameters counted once"),
    "zero_std_fraction": MetricSpec("none", "share of groups whose rewards are all equal"),
}

# Per-sequence values by name, and the metrics that are made of them once every micro-batch is in.
SEQUENCE_STATISTICS: Mapping[str, Mapping[str, float]] = {
    "token_mult_prob_error": {"token_mult_prob_error_max": 1.0, "token_mult_prob_error_p99": 0.99},
    "logprob_difference": {"logprob_difference_max": 1.0, "logprob_difference_p99": 0.99},
}


@dataclass(frozen=True)
class MetricSums:
    """Metrics of some micro-batches, on their device, for which only `on_host` and `finalise` wait."""

    sums: Mapping[str, Tensor] = field(default_factory=dict)  # scalars, float64
    maxima: Mapping[str, Tensor] = field(default_factory=dict)  # scalars; -inf: nothing seen
    minima: Mapping[str, Tensor] = field(default_factory=dict)  # scalars; +inf: nothing seen
    sequence_values: Mapping[str, Tensor] = field(default_factory=dict)  # [b]; NaN: a sequence without trained tokens

    def merge(self, other: MetricSums) -> MetricSums:
        """Both together; a metric that only one side has is kept."""
        return MetricSums(
            {**self.sums, **other.sums, **{k: self.sums[k] + other.sums[k] for k in _both(self.sums, other.sums)}},
            {
                **self.maxima,
                **other.maxima,
                **{k: torch.maximum(self.maxima[k], other.maxima[k]) for k in _both(self.maxima, other.maxima)},
            },
            {
                **self.minima,
                **other.minima,
                **{k: torch.minimum(self.minima[k], other.minima[k]) for k in _both(self.minima, other.minima)},
            },
            {
                **self.sequence_values,
                **other.sequence_values,
                **{
                    k: torch.cat([self.sequence_values[k], other.sequence_values[k]])
                    for k in _both(self.sequence_values, other.sequence_values)
                },
            },
        )

    def on_host(self) -> MetricSums:
        """The same on the CPU, in one transfer: the only wait for the device."""
        parts = (self.sums, self.maxima, self.minima, self.sequence_values)
        values = [value for part in parts for value in part.values()]
        if not values or all(value.device.type == "cpu" for value in values):
            return self
        whole = torch.cat([value.double().flatten() for value in values]).cpu()
        flat = iter(torch.split(whole, [value.numel() for value in values]))
        return MetricSums(*({name: next(flat).view(v.shape) for name, v in part.items()} for part in parts))

    def finalise(self, denominators: Denominators) -> dict[str, float]:
        """The metrics as plain numbers. Without a single trained token sums are 0 and extremes are left out."""
        here = self.on_host()
        divisor = {"tokens": inverse(denominators.tokens), "sequences": inverse(denominators.sequences), "none": 1.0}
        result = {name: total.item() * divisor[METRICS[name].denominator] for name, total in here.sums.items()}
        extremes = {name: value.item() for name, value in (*here.maxima.items(), *here.minima.items())}
        result |= {name: value for name, value in extremes.items() if abs(value) != float("inf")}
        for name, values in here.sequence_values.items():
            known = values[~values.isnan()]
            if known.numel():
                levels = SEQUENCE_STATISTICS[name]
                points = torch.quantile(known, known.new_tensor(list(levels.values())))
                result |= dict(zip(levels, points.tolist(), strict=True))
        return result


def _both(left: Iterable[str], right: Mapping[str, Tensor]) -> list[str]:
    return [name for name in left if name in right]
