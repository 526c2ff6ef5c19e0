"""Conflicts of data, verifiers, validation, schedule and checkpoints."""

import math
from collections.abc import Iterator

from grpo.config.nearest import did_you_mean
from grpo.config.rules.conflict import Conflict, Rule
from grpo.config.schema import Config

_METRICS = ("train", "validation", "rollout", "performance", "timing", "memory")


def env_names(config: Config) -> Iterator[Conflict]:
    names = {"data.train.env_name": config.data.train.env_name}
    if config.data.validation is not None:
        names["data.validation.env_name"] = config.data.validation.env_name
    if not config.env:
        yield Conflict(("env",), "no verifier; at least one, such as env.math.verifier=math")
        return
    there = ", ".join(config.env)
    for key, name in names.items():
        if name is None:
            yield Conflict(
                (key, "data.default.env_name"), f"no entry of `env` is named to score the answers; there are: {there}"
            )
        elif name not in config.env:
            yield Conflict(
                (key,), f"there is no such entry of `env`{did_you_mean(name, config.env)}; there are: {there}"
            )


def schedule(config: Config) -> Iterator[Conflict]:
    scheduler, decay = config.policy.scheduler, "policy.scheduler.decay"
    steps, floor = "policy.scheduler.decay_steps", "policy.scheduler.min_lr_ratio"
    if scheduler.decay != "constant":
        if scheduler.decay_steps is None:
            yield Conflict((decay, steps), "a decay needs its number of updates")
        return
    if scheduler.decay_steps is not None:
        yield Conflict((decay, steps), "nothing decays; null, or a decay of linear or cosine")
    if scheduler.min_lr_ratio:
        yield Conflict((decay, floor), "nothing decays; 0, or a decay of linear or cosine")


def betas(config: Config) -> Iterator[Conflict]:
    if not all(0 <= one < 1 for one in config.policy.optimizer.kwargs.betas):
        yield Conflict(("policy.optimizer.kwargs.betas",), "each must be at least 0 and below 1")


def checkpoint_metric(config: Config) -> Iterator[Conflict]:
    name = config.checkpointing.metric_name
    if config.checkpointing.enabled and config.checkpointing.keep_top_k and name.split("/")[0] not in _METRICS:
        yield Conflict(
            ("checkpointing.metric_name",),
            f"metrics are named GROUP/NAME, such as validation/accuracy or train/reward; groups: {', '.join(_METRICS)}",
        )


def time_limit(config: Config) -> Iterator[Conflict]:
    checkpointing = config.checkpointing
    if checkpointing.checkpoint_must_save_by is not None and not checkpointing.enabled:
        keys = ("checkpointing.checkpoint_must_save_by", "checkpointing.enabled")
        yield Conflict(keys, "nothing is saved; null, or enabled=true")


RULES: tuple[Rule, ...] = (env_names, schedule, betas, checkpoint_metric, time_limit)


def notes(config: Config) -> Iterator[str]:
    """What is allowed and probably not meant."""
    data = config.data
    used = {data.train.env_name} | ({data.validation.env_name} if data.validation is not None else set())
    for name in config.env:
        if name not in used:
            yield f"env.{name} scores no dataset; leave it out with ~env.{name}"
    validates = config.grpo.val_period or config.grpo.val_at_start or config.grpo.val_at_end
    if data.validation is None and validates:
        yield "there is no validation set (data.validation), so that nothing is validated"
    if data.validation is not None and not validates:
        yield "data.validation is never used: grpo.val_period is 0, val_at_start and val_at_end are false"
    checkpointing, name = config.checkpointing, config.checkpointing.metric_name
    top = checkpointing.enabled and checkpointing.keep_top_k > 0
    if top and data.validation is None and name.startswith("validation/"):
        yield f"checkpointing.keep_top_k keeps none: without a validation set there is no {name}"
    every = checkpointing.keep_every_n_steps
    if checkpointing.enabled and every is not None and every % checkpointing.save_period:
        yield (
            f"checkpointing.keep_every_n_steps={every} is no multiple of save_period={checkpointing.save_period}: "
            f"every {math.lcm(every, checkpointing.save_period)} steps a checkpoint is kept for good"
        )
    if config.grpo.stop_at_reward is not None and config.grpo.stop_window > config.grpo.max_num_steps:
        yield (
            f"grpo.stop_at_reward has no effect: the run ends after grpo.max_num_steps={config.grpo.max_num_steps}, "
            f"before grpo.stop_window={config.grpo.stop_window} is full"
        )
