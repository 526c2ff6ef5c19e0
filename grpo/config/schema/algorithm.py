"""`grpo.*` and `loss_fn.*`: what is sampled a step, and what is optimised."""

from typing import Literal

from pydantic import Field

from grpo.config.schema.base import Section

AdvantageEstimator = Literal["grpo", "dr_grpo", "rloo", "reinforce_pp"]
LossKind = Literal["clipped", "gspo", "cispo"]
CorrectionKind = Literal["token", "sequence", "tis", "mis", "icepop", "seq-mask-tis"]
AggregationKind = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]
KLKind = Literal["k1", "k2", "k3"]


class RewardShaping(Section):
    """DAPO's soft penalty on overlong completions (arXiv 2503.14476)."""

    enabled: bool = False
    overlong_buffer_length: int = Field(
        128, gt=0, description="C: tokens before the maximum over which the penalty grows"
    )
    overlong_buffer_penalty: float = Field(1.0, ge=0, description="penalty at the maximum length")
    max_response_length: int | None = Field(
        None, gt=0, description="L in tokens; null: policy.generation.max_new_tokens"
    )


class RewardScaling(Section):
    """Linear map of rewards from [source_min, source_max] to [target_min, target_max], clamped."""

    enabled: bool = False
    source_min: float = 0.0
    source_max: float = 1.0
    target_min: float = 0.0
    target_max: float = 1.0


class AsyncGrpo(Section):
    """Sampling while training runs, with weights that are some steps old. Needs an engine that is not colocated."""

    enabled: bool = False
    max_trajectory_age_steps: int = Field(
        1, gt=0, description="steps that the weights of a trained token may lie behind those that train on it"
    )
    in_flight_weight_updates: bool = Field(
        False, description="new weights reach the engine between two tokens; false: after what it samples has finished"
    )
    recompute_kv_cache_after_weight_updates: bool = Field(
        False, description="with updates in flight: compute the cache of running samples again with the new weights"
    )


class Grpo(Section):
    """The sampling side of a step."""

    num_prompts_per_step: int = Field(32, gt=0)
    num_generations_per_prompt: int = Field(16, description="G, completions of one prompt; at least 2")
    max_num_steps: int = Field(1_000_000, gt=0)
    max_num_epochs: int = Field(
        1, gt=0, description="passes over the training prompts; the earlier of the two limits ends the run"
    )
    seed: int = Field(42, ge=0)
    advantage_estimator: AdvantageEstimator = "grpo"
    normalize_rewards: bool = Field(True, description="grpo only: divide by the group's standard deviation")
    use_leave_one_out_baseline: bool = Field(True, description="grpo only: mean and deviation of the other completions")
    advantage_epsilon: float = Field(1e-6, ge=0, description="added to the standard deviation")
    use_dynamic_sampling: bool = Field(
        False, description="keep only groups whose raw rewards differ, and refill (DAPO)"
    )
    dynamic_sampling_max_gen_batches: int = Field(10, gt=0)
    overlong_filtering: bool = Field(False, description="give truncated completions no loss")
    reward_shaping: RewardShaping = RewardShaping()
    reward_scaling: RewardScaling = RewardScaling()
    async_grpo: AsyncGrpo = AsyncGrpo()
    val_period: int = Field(10, ge=0, description="steps between validations; 0: never")
    val_at_start: bool = False
    val_at_end: bool = False
    max_val_samples: int | None = Field(256, gt=0, description="null: the whole validation set")
    val_batch_size: int = Field(256, gt=0)
    stop_at_reward: float | None = Field(
        None, description="end early when the training reward, averaged over stop_window steps, reaches this"
    )
    stop_window: int = Field(20, gt=0)


class LossFn(Section):
    """The objective. Formulas and sources: `grpo.algorithm`."""

    kind: LossKind = "clipped"
    ratio_clip_min: float = Field(0.2, ge=0, lt=1)
    ratio_clip_max: float = Field(0.2, ge=0)
    ratio_clip_c: float | None = Field(None, gt=1, description="dual clip bound where the advantage is negative")
    force_on_policy_ratio: bool = Field(
        False, description="ratio exp(l - sg(l)); the old log-prob pass is skipped; one update a step"
    )
    aggregation: AggregationKind = "token_mean"
    aggregation_norm_length: int | None = Field(
        None, gt=0, description="L of seq_mean_token_sum_norm; null: policy.generation.max_new_tokens"
    )
    entropy_coef: float = 0.0
    reference_policy_kl_penalty: float = Field(0.01, ge=0, description="0 loads no reference policy")
    reference_policy_kl_type: KLKind = "k3"
    reference_policy_kl_in: Literal["loss", "reward"] = "loss"
    kl_on_policy_gradient: bool = Field(True, description="multiply the KL term by exp(l - sg(l)) (arXiv 2506.09477)")
    kl_input_clamp_value: float | None = Field(20.0, gt=0)
    kl_output_clamp_value: float | None = Field(10.0, gt=0)
    use_importance_sampling_correction: bool = False
    importance_sampling_correction_type: CorrectionKind = "token"
    truncated_importance_sampling_ratio: float | None = Field(None, gt=0, description="cap of tis and mis (null: 2)")
    importance_sampling_ratio_min: float | None = Field(
        None, ge=0, description="lower bound of icepop (null: 0.5) and seq-mask-tis (null: 0.999)"
    )
    importance_sampling_ratio_max: float | None = Field(
        None, gt=0, description="upper bound of icepop (null: 5) and seq-mask-tis (null: 1.002)"
    )
