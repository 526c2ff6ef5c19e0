"""From the configuration to the plain values that pure functions take."""

from __future__ import annotations

from math import lcm

from grpo.algorithm.objective import ObjectiveOptions
from grpo.batching.micro_batches import Dynamic, Packed, Planning, Static, round_up
from grpo.config.schema import Config, Policy
from grpo.workers.policy.schedule import learning_rate_factor


def objective_options(config: Config) -> ObjectiveOptions:
    """`loss_fn.*` of a resolved configuration."""
    loss = config.loss_fn
    cap = loss.truncated_importance_sampling_ratio
    return ObjectiveOptions(
        kind=loss.kind,
        ratio_clip_min=loss.ratio_clip_min,
        ratio_clip_max=loss.ratio_clip_max,
        ratio_clip_c=loss.ratio_clip_c,
        force_on_policy_ratio=loss.force_on_policy_ratio,
        aggregation=loss.aggregation,
        aggregation_norm_length=loss.aggregation_norm_length,
        entropy_coef=loss.entropy_coef,
        kl_penalty=loss.reference_policy_kl_penalty,
        kl_kind=loss.reference_policy_kl_type,
        kl_in_loss=loss.reference_policy_kl_in == "loss",
        kl_on_policy_gradient=loss.kl_on_policy_gradient,
        kl_input_clamp=loss.kl_input_clamp_value,
        kl_output_clamp=loss.kl_output_clamp_value,
        use_correction=loss.use_importance_sampling_correction,
        correction_kind=loss.importance_sampling_correction_type,
        correction_cap=ObjectiveOptions.correction_cap if cap is None else cap,
        correction_min=loss.importance_sampling_ratio_min,
        correction_max=loss.importance_sampling_ratio_max,
    )


def needs_reference(config: Config) -> bool:
    """A KL coefficient of 0 loads no reference policy and runs no reference pass."""
    return config.loss_fn.reference_policy_kl_penalty != 0


def planning(policy: Policy, *, training: bool) -> Planning:
    """How the training pass, or the log-prob pass, cuts a batch into micro-batches."""
    rows = policy.train_micro_batch_size if training else policy.logprob_batch_size
    default = policy.max_total_sequence_length * rows
    divisor = policy.make_sequence_length_divisible_by or 1
    dtensor, megatron = policy.dtensor_cfg, policy.megatron_cfg
    if dtensor.enabled and dtensor.sequence_parallel:
        divisor = lcm(divisor, dtensor.tensor_parallel_size)
    if megatron.enabled and megatron.sequence_parallel:
        divisor = lcm(divisor, megatron.tensor_model_parallel_size)
    if policy.sequence_packing.enabled:
        packing = policy.sequence_packing
        tokens = packing.train_mb_tokens if training else packing.logprob_mb_tokens
        cap = (tokens or default) // divisor * divisor  # rows are widened to a multiple
        return Packed(max(cap, policy.max_total_sequence_length), packing.algorithm, divisor)
    if policy.dynamic_batching.enabled:
        dynamic = policy.dynamic_batching
        tokens = dynamic.train_mb_tokens if training else dynamic.logprob_mb_tokens
        round_to = lcm(dynamic.sequence_length_round, divisor)
        # One sequence of the greatest length must fit once its width is rounded up.
        return Dynamic(max(tokens or default, round_up(policy.max_total_sequence_length, round_to)), round_to)
    return Static(rows, divisor)


def learning_rate_at(policy: Policy, update: int) -> float:
    """The learning rate of an update, counted from 0."""
    schedule = policy.scheduler
    return policy.optimizer.kwargs.lr * learning_rate_factor(
        update,
        warmup_steps=schedule.warmup_steps,
        decay=schedule.decay,
        decay_steps=schedule.decay_steps,
        min_ratio=schedule.min_lr_ratio,
    )
