"""Conflicts within `grpo.*` and `loss_fn.*`, and with the sizes of a step."""

from collections.abc import Iterator

from grpo.config.rules.conflict import Conflict, Rule
from grpo.config.schema import Config

_P, _G = "grpo.num_prompts_per_step", "grpo.num_generations_per_prompt"
_BATCH = "policy.train_global_batch_size"
_KIND = "loss_fn.kind"
_CORRECTION = "loss_fn.importance_sampling_correction_type"
_LOW, _HIGH = "loss_fn.importance_sampling_ratio_min", "loss_fn.importance_sampling_ratio_max"
_CAP = "loss_fn.truncated_importance_sampling_ratio"
_KL_IN = "loss_fn.reference_policy_kl_in"


def group_size(config: Config) -> Iterator[Conflict]:
    if config.grpo.num_generations_per_prompt < 2:
        yield Conflict((_G,), "a completion is compared with the others of its prompt: at least 2")


def updates_per_step(config: Config) -> Iterator[Conflict]:
    prompts, group = config.grpo.num_prompts_per_step, config.grpo.num_generations_per_prompt
    batch = config.policy.train_global_batch_size
    if group < 2:
        return
    if prompts * group % batch:
        yield Conflict(
            (_P, _G, _BATCH),
            f"the {prompts * group} completions of a step are not a multiple of the batch; valid batches: "
            f"{_divisors(prompts * group)}",
        )
    elif config.loss_fn.force_on_policy_ratio and prompts * group != batch:
        yield Conflict(
            ("loss_fn.force_on_policy_ratio", _P, _G, _BATCH),
            f"a step would have {prompts * group // batch} updates, and only the first is on policy; "
            f"set {_BATCH}={prompts * group}",
        )


def _divisors(number: int) -> str:
    divisors = [one for one in range(1, number + 1) if number % one == 0]
    return ", ".join(map(str, divisors[-6:]))


def gspo_aggregation(config: Config) -> Iterator[Conflict]:
    if config.loss_fn.kind == "gspo" and config.loss_fn.aggregation != "seq_mean_token_mean":
        yield Conflict(
            (_KIND, "loss_fn.aggregation"), "GSPO's ratio is one per sequence; valid with it: seq_mean_token_mean"
        )


def dual_clip(config: Config) -> Iterator[Conflict]:
    if config.loss_fn.ratio_clip_c is None:
        return
    if config.loss_fn.kind == "cispo":
        yield Conflict((_KIND, "loss_fn.ratio_clip_c"), "CISPO has no dual clip; set it to null")
    if config.loss_fn.force_on_policy_ratio:
        yield Conflict(
            ("loss_fn.force_on_policy_ratio", "loss_fn.ratio_clip_c"),
            "the ratio is always 1, which no dual clip meets; null",
        )


def norm_length(config: Config) -> Iterator[Conflict]:
    if config.loss_fn.aggregation_norm_length is not None and config.loss_fn.aggregation != "seq_mean_token_sum_norm":
        yield Conflict(
            ("loss_fn.aggregation", "loss_fn.aggregation_norm_length"),
            "only seq_mean_token_sum_norm divides by a length; set the length to null",
        )


def kl_in_reward(config: Config) -> Iterator[Conflict]:
    if config.loss_fn.reference_policy_kl_in != "reward":
        return
    if config.loss_fn.reference_policy_kl_penalty == 0:
        yield Conflict(
            (_KL_IN, "loss_fn.reference_policy_kl_penalty"),
            "a penalty of 0 changes no reward; set it above 0, or the place to loss",
        )
    if not config.loss_fn.kl_on_policy_gradient:
        yield Conflict(
            (_KL_IN, "loss_fn.kl_on_policy_gradient"), "a KL in the reward has no gradient to correct; set true"
        )


def correction_bounds(config: Config) -> Iterator[Conflict]:
    loss = config.loss_fn
    kind = loss.importance_sampling_correction_type
    if kind not in ("tis", "mis") and loss.truncated_importance_sampling_ratio is not None:
        advice = f"the bound of {kind} is {_HIGH}" if kind in ("icepop", "seq-mask-tis") else "tis and mis have a cap"
        yield Conflict(
            (_CORRECTION, _CAP), f"{kind} has no cap: {advice}; set the cap to null, or the type to tis or mis"
        )
    low, high = loss.importance_sampling_ratio_min, loss.importance_sampling_ratio_max
    if kind not in ("icepop", "seq-mask-tis"):
        for key, value in ((_LOW, low), (_HIGH, high)):
            if value is not None:
                yield Conflict(
                    (_CORRECTION, key),
                    f"{kind} has no such bound; set it to null, or the type to icepop or seq-mask-tis",
                )
    elif low is not None and high is not None and low >= high:
        yield Conflict((_LOW, _HIGH), "no weight is within; the first must be below the second")


def reward_shaping(config: Config) -> Iterator[Conflict]:
    shaping, longest = config.grpo.reward_shaping, config.policy.generation.max_new_tokens
    if not shaping.enabled or shaping.max_response_length is None or longest is None:
        return
    full, buffer = "grpo.reward_shaping.max_response_length", "grpo.reward_shaping.overlong_buffer_length"
    if shaping.overlong_buffer_length >= shaping.max_response_length:
        yield Conflict(
            (buffer, full), "the penalty would start at length 0 or below; the first must be below the second"
        )
    elif shaping.max_response_length - shaping.overlong_buffer_length >= longest:
        yield Conflict(
            (full, buffer, "policy.generation.max_new_tokens"),
            "no completion is long enough to be penalised; lower the first",
        )


def reward_scaling(config: Config) -> Iterator[Conflict]:
    scaling = config.grpo.reward_scaling
    if scaling.enabled and scaling.source_min >= scaling.source_max:
        yield Conflict(
            ("grpo.reward_scaling.source_min", "grpo.reward_scaling.source_max"), "the first must be below the second"
        )
    if scaling.enabled and scaling.target_min == scaling.target_max:
        yield Conflict(
            ("grpo.reward_scaling.target_min", "grpo.reward_scaling.target_max"),
            "every reward would be the same; they must differ",
        )


RULES: tuple[Rule, ...] = (
    group_size, updates_per_step, gspo_aggregation, dual_clip, norm_length, kl_in_reward, correction_bounds,
    reward_shaping, reward_scaling,
)  # fmt: skip
