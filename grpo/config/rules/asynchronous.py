"""Conflicts of asynchronous training."""

from collections.abc import Iterator

from grpo.config.rules.conflict import Conflict, Rule
from grpo.config.schema import Config

_ASYNC = "grpo.async_grpo"
_ENABLED = f"{_ASYNC}.enabled"


def asynchronous(config: Config) -> Iterator[Conflict]:
    if not config.grpo.async_grpo.enabled:
        return
    if config.policy.generation.colocated.enabled:
        yield Conflict(
            (_ENABLED, "policy.generation.colocated.enabled"),
            "the engine samples while the policy trains, so it needs devices of its own: set the second to false",
        )
    if not config.loss_fn.use_importance_sampling_correction:
        yield Conflict(
            (_ENABLED, "loss_fn.use_importance_sampling_correction"),
            "tokens come from older weights, which the correction accounts for: set the second to true",
        )
    if config.loss_fn.force_on_policy_ratio:
        yield Conflict((_ENABLED, "loss_fn.force_on_policy_ratio"), "the data is off-policy: set the second to false")


def weight_updates(config: Config) -> Iterator[Conflict]:
    settings = config.grpo.async_grpo
    in_flight, recompute = f"{_ASYNC}.in_flight_weight_updates", f"{_ASYNC}.recompute_kv_cache_after_weight_updates"
    if settings.in_flight_weight_updates:
        if not settings.enabled:
            yield Conflict((in_flight, _ENABLED), "without asynchronous training nothing is in flight: set false")
        if config.policy.generation.backend != "vllm":
            yield Conflict(
                (in_flight, "policy.generation.backend"), "only vllm takes weights between two tokens: set false"
            )
    elif settings.recompute_kv_cache_after_weight_updates:
        yield Conflict((recompute, in_flight), "no cache outlives an update that waits for its samples: set false")


RULES: tuple[Rule, ...] = (asynchronous, weight_updates)
