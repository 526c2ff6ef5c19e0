"""The whole objective of one micro-batch: policy term, KL term, entropy bonus, and every metric of the update."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo.algorithm import diagnostics
from grpo.algorithm.aggregation import Aggregation, Denominators, aggregate, token_weights
from grpo.algorithm.importance import CorrectionKind, ImportanceWeights, importance_weights
from grpo.algorithm.kl import KLKind, kl_estimates, on_policy_gradient
from grpo.algorithm.layout import TokenLayout
from grpo.algorithm.loss import LossKind, PolicyLoss, policy_loss
from grpo.algorithm.metrics import MetricSums

__all__ = [
    "Denominators", "Objective", "ObjectiveOptions", "TokenValues", "joined", "objective", "objective_loss",
    "objective_metrics",
]  # fmt: skip


@dataclass(frozen=True)
class ObjectiveOptions:
    """Plain values, every null resolved. None: the option is off, or its kind does not use it."""

    kind: LossKind = "clipped"
    ratio_clip_min: float = 0.2
    ratio_clip_max: float = 0.2
    ratio_clip_c: float | None = None
    force_on_policy_ratio: bool = False
    aggregation: Aggregation = "token_mean"  # GSPO always takes seq_mean_token_mean
    aggregation_norm_length: float | None = None
    entropy_coef: float = 0.0
    kl_penalty: float = 0.01
    kl_kind: KLKind = "k3"
    kl_in_loss: bool = True
    kl_on_policy_gradient: bool = True
    kl_input_clamp: float | None = 20.0
    kl_output_clamp: float | None = 10.0
    use_correction: bool = False
    correction_kind: CorrectionKind = "token"
    correction_cap: float = 2.0
    correction_min: float | None = None
    correction_max: float | None = None


@dataclass(frozen=True)
class TokenValues:
    """One micro-batch: T tokens of b sequences. Where the mask is false any per-token value may hold anything."""

    logprobs: Tensor  # [T] float32 or float64, requires grad
    mask: Tensor  # [T] bool, true on trained tokens
    sequence_ids: Tensor  # [T] int64 in [0, b)
    num_sequences: int
    advantages: Tensor  # [b] float32
    generation_logprobs: Tensor  # [T]
    old_logprobs: Tensor | None = None  # [T]; None exactly with force_on_policy_ratio: then sg(logprobs)
    reference_logprobs: Tensor | None = None  # [T]; needed for a KL term in the loss, else only reported
    entropy: Tensor | None = None  # [T], exact, of softmax(z / T); needed for an entropy bonus, else only reported

    def detached(self) -> TokenValues:
        """The same values, holding on to no graph."""
        entropy = None if self.entropy is None else self.entropy.detach()
        return replace(self, logprobs=self.logprobs.detach(), entropy=entropy)


def joined(parts: Sequence[TokenValues]) -> TokenValues:
    """Micro-batches as one. The same optional values are in all of them."""

    def each(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    def optional(name: str) -> Tensor | None:
        return None if getattr(parts[0], name) is None else each(name)

    firsts = itertools.accumulate((part.num_sequences for part in parts), initial=0)
    return TokenValues(
        logprobs=each("logprobs"),
        mask=each("mask"),
        sequence_ids=torch.cat([part.sequence_ids + first for part, first in zip(parts, firsts, strict=False)]),
        num_sequences=sum(part.num_sequences for part in parts),
        advantages=each("advantages"),
        generation_logprobs=each("generation_logprobs"),
        old_logprobs=optional("old_logprobs"),
        reference_logprobs=optional("reference_logprobs"),
        entropy=optional("entropy"),
    )


@dataclass(frozen=True)
class Objective:
    loss: Tensor  # scalar; the sum over micro-batches is the loss of the optimizer batch
    metrics: MetricSums


def objective(values: TokenValues, options: ObjectiveOptions, denominators: Denominators) -> Objective:
    """Loss and metrics of one micro-batch. Raises ValueError where the options need a value that is missing.

    loss = sum over tokens of weight x (w x (policy loss + kl_penalty x KL) - entropy_coef x entropy).

    GSPO aggregates as seq_mean_token_mean. The importance weight w multiplies the KL term as well as the policy term:
    both are estimates of an expectation over the trainer's policy from tokens that the engine sampled, so both need the
    same change of measure, and a token whose weight is 0 is distrusted in both. The entropy is not weighted: it is
    exact given the tokens before it, and a weight on the token after it, whose expectation is 1, would only add noise.
    """
    terms = _terms(values, options, denominators, reported=True)
    return Objective(terms.loss, _metrics(values, terms))


def objective_loss(values: TokenValues, options: ObjectiveOptions, denominators: Denominators) -> Tensor:
    """The loss of `objective` alone, in fewer operations: the metrics of many micro-batches are made together."""
    return _terms(values, options, denominators, reported=False).loss


@torch.no_grad()
def objective_metrics(
    parts: Sequence[TokenValues], options: ObjectiveOptions, denominators: Denominators
) -> MetricSums:
    """The metrics of `objective` over all these micro-batches, whose sequences are taken in their order."""
    values = joined(parts)
    return _metrics(values, _terms(values, options, denominators, reported=True))


@dataclass(frozen=True)
class _Terms:
    layout: TokenLayout
    old: Tensor  # [T]
    policy: PolicyLoss
    importance: ImportanceWeights | None
    kl: Tensor | None  # [T]
    losses: dict[str, Tensor]  # scalars whose sum is the loss

    @functools.cached_property
    def loss(self) -> Tensor:
        return functools.reduce(torch.add, self.losses.values())


def _terms(values: TokenValues, options: ObjectiveOptions, denominators: Denominators, *, reported: bool) -> _Terms:
    """`reported`: with what the metrics need and the loss does not."""
    layout = TokenLayout(values.mask, values.sequence_ids, values.num_sequences)
    old = _old_logprobs(values, options)
    policy = policy_loss(
        values.logprobs, old, _token_advantages(values, layout), layout,
        kind=options.kind, clip_min=options.ratio_clip_min, clip_max=options.ratio_clip_max,
        dual_clip=options.ratio_clip_c,
    )  # fmt: skip
    importance = None
    if reported or options.use_correction:
        importance = importance_weights(
            old, values.generation_logprobs, layout,
            kind=options.correction_kind, cap=options.correction_cap,
            minimum=options.correction_min, maximum=options.correction_max,
        )  # fmt: skip
    weights = token_weights(
        layout, denominators, kind=effective_aggregation(options),
        norm_length=options.aggregation_norm_length, dtype=values.logprobs.dtype,
    )  # fmt: skip
    corrected = weights * importance.weights if importance is not None and options.use_correction else weights
    losses = {"policy_loss": aggregate(policy.losses, corrected)}
    in_loss = options.kl_in_loss and options.kl_penalty != 0
    kl = _kl(values, options) if reported or in_loss else None
    if in_loss:
        if kl is None:
            raise ValueError(f"kl_penalty {options.kl_penalty} in the loss needs reference_logprobs")
        term = on_policy_gradient(kl, values.logprobs, values.mask) if options.kl_on_policy_gradient else kl
        losses["kl_loss"] = options.kl_penalty * aggregate(term, corrected)
    if options.entropy_coef != 0:
        if values.entropy is None:
            raise ValueError(f"entropy_coef {options.entropy_coef} needs the entropy of every token")
        entropy = torch.where(values.mask, values.entropy, 0.0)
        losses["entropy_loss"] = -options.entropy_coef * aggregate(entropy, weights)
    return _Terms(layout, old, policy, importance, kl, losses)


def effective_aggregation(options: ObjectiveOptions) -> Aggregation:
    """GSPO's ratio belongs to a sequence, so its loss is a mean over sequences whatever the options say."""
    return "seq_mean_token_mean" if options.kind == "gspo" else options.aggregation


def _old_logprobs(values: TokenValues, options: ObjectiveOptions) -> Tensor:
    if options.force_on_policy_ratio != (values.old_logprobs is None):
        raise ValueError("old_logprobs must be None exactly with force_on_policy_ratio")
    return values.logprobs.detach() if values.old_logprobs is None else values.old_logprobs


def _token_advantages(values: TokenValues, layout: TokenLayout) -> Tensor:
    with torch.no_grad():
        return torch.where(layout.mask, layout.spread(values.advantages.to(values.logprobs.dtype)), 0.0)


def _kl(values: TokenValues, options: ObjectiveOptions) -> Tensor | None:
    if values.reference_logprobs is None:
        return None
    return kl_estimates(
        values.logprobs, values.reference_logprobs, values.mask,
        kind=options.kl_kind, input_clamp=options.kl_input_clamp, output_clamp=options.kl_output_clamp,
    )  # fmt: skip


def _importance_rows(importance: ImportanceWeights) -> dict[str, Tensor]:
    rows = {"sampling_importance_ratio": importance.weights, "nonfinite_importance_weights": importance.nonfinite}
    return rows if importance.outside is None else {**rows, "is_oob_ratio": importance.outside}


@torch.no_grad()
def _metrics(values: TokenValues, terms: _Terms) -> MetricSums:
    layout, importance, generation = terms.layout, terms.importance, values.generation_logprobs
    assert importance is not None, "of a reported objective"
    mask = layout.mask
    differences = diagnostics.logprob_differences(terms.old, generation, mask)
    distances, errors = differences.abs(), diagnostics.mult_prob_error(differences)
    rows = {
        "probs_ratio": terms.policy.ratios,
        "clip_fraction": terms.policy.clipped,
        **_importance_rows(importance),
        "trained_tokens": mask,
        "approx_entropy": diagnostics.approx_entropy(values.logprobs, generation, mask),
        "token_mult_prob_error": errors,
        "logprob_difference": distances,
        "gen_kl_error": diagnostics.gen_kl_error(differences),
    }
    rows |= {} if terms.kl is None else {"kl_penalty": terms.kl}
    rows |= {} if values.entropy is None else {"entropy": values.entropy}
    losses = {"loss": terms.loss, **terms.losses}
    sums = {name: loss.detach().double() for name, loss in losses.items()} | diagnostics.token_sums(rows, mask)
    trained = layout.sequence_tokens > 0
    sums["trained_sequences"] = trained.sum().double()
    if importance.outside_sequences is not None:
        sums["is_oob_sequence_ratio"] = (importance.outside_sequences & trained).sum().double()
    return MetricSums(
        sums,
        maxima={"probs_ratio_max": torch.where(mask, terms.policy.ratios, -torch.inf).amax()},
        minima={"probs_ratio_min": torch.where(mask, terms.policy.ratios, torch.inf).amin()},
        sequence_values={
            "token_mult_prob_error": diagnostics.sequence_means(errors, layout),
            "logprob_difference": diagnostics.sequence_means(distances, layout),
        },
    )
