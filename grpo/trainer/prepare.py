"""Everything that can be wrong with a run, found before anything starts: files, models, data, verifiers, devices."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo.config import Config, ResolvedConfig
from grpo.data.prompts import PromptSet, load_prompts
from grpo.data.tasks import best_constant_score
from grpo.errors import ConfigError, DataError
from grpo.models.loading import check_weights_present, load_model_config, load_tokenizer
from grpo.models.locate import locate_model
from grpo.rollout.lengths import replayed_lengths
from grpo.trainer.supported import check_runnable
from grpo.workers.generation.vllm_arguments import context_length
from grpo.workers.protocol import Replay, SamplingParams


@dataclass(frozen=True)
class Prepared:
    """What a run is made from; no process, engine or model is running yet."""

    resolved: ResolvedConfig
    model_path: Path
    model_config: Any  # transformers' own
    tokenizer: PreTrainedTokenizerBase
    train: PromptSet
    validation: PromptSet | None
    shared_prompts: int  # left out of training because validation has them

    @property
    def config(self) -> Config:
        return self.resolved.config

    @property
    def chance(self) -> float | None:
        """Score of the best constant answer on the validation prompts, where they have answers."""
        answers = [] if self.validation is None else [prompt.answer for prompt in self.validation.prompts]
        known = [answer for answer in answers if answer is not None]
        return best_constant_score(known) if known and len(known) == len(answers) else None


def prepare(resolved: ResolvedConfig) -> Prepared:
    """Locate and read everything that the run needs.

    Raises:
        ConfigError, ModelError, DataError: something is missing, unreadable or does not fit together.
    """
    config = resolved.config
    check_runnable(config)
    policy = config.policy
    model_path = locate_model(policy.model_name, policy.model_revision, weights=not policy.random_weights)
    model_config = load_model_config(model_path)
    if not config.policy.random_weights:
        check_weights_present(model_path)
    name = config.policy.tokenizer.name
    tokenizer_path = model_path if name is None else locate_model(name, key="policy.tokenizer.name")
    tokenizer = load_tokenizer(tokenizer_path, vocabulary=model_config.vocab_size)
    _check_context(config, model_config)
    train_sampling(config, tokenizer)  # so that a file that cannot be read is told of before anything starts
    train = load_prompts(
        config.data.train, config.data, config.policy, tokenizer, vocab_size=model_config.vocab_size, key="data.train"
    )
    validation = None
    if config.data.validation is not None:
        validation = load_prompts(
            config.data.validation, config.data, config.policy, tokenizer, vocab_size=model_config.vocab_size,
            key="data.validation",
        )  # fmt: skip
    train, shared = _held_out(train, validation, config)
    # Millions of records live as long as the run: full collections need not walk them.
    gc.freeze()
    return Prepared(resolved, model_path, model_config, tokenizer, train, validation, shared)


def _held_out(train: PromptSet, validation: PromptSet | None, config: Config) -> tuple[PromptSet, int]:
    """Training prompts that validation does not have, and how many it had in common."""
    if validation is None or not config.data.keep_validation_apart:
        return train, 0
    known = {prompt.token_ids for prompt in validation.prompts}
    kept = [prompt for prompt in train.prompts if prompt.token_ids not in known]
    if not kept:
        raise DataError(
            f"data.train: all {len(train.prompts)} prompts are in data.validation too; give training prompts of its "
            "own, or set data.keep_validation_apart=false to train on what is validated"
        )
    return replace(train, prompts=kept), len(train.prompts) - len(kept)


def train_sampling(config: Config, tokenizer: PreTrainedTokenizerBase) -> SamplingParams:
    """How training completions are sampled.

    Raises:
        ConfigError: the lengths to be replayed cannot be read.
    """
    generation = config.policy.generation
    assert generation.max_new_tokens is not None, "filled in when the configuration is resolved"
    lengths = replayed_lengths(config)
    return SamplingParams(
        max_new_tokens=generation.max_new_tokens, temperature=generation.temperature, top_p=generation.top_p,
        top_k=generation.top_k, min_new_tokens=generation.min_new_tokens,
        stop_token_ids=_stop_token_ids(config, tokenizer), stop_strings=tuple(generation.stop_strings or ()),
        replay=None if lengths is None else Replay(lengths, context_length(config)),
    )  # fmt: skip


def validation_sampling(config: Config, tokenizer: PreTrainedTokenizerBase) -> SamplingParams:
    """How validation completions are sampled."""
    generation = config.policy.generation
    settings = generation.validation
    assert settings.max_new_tokens is not None, "filled in when the configuration is resolved"
    return SamplingParams(
        max_new_tokens=settings.max_new_tokens, temperature=settings.temperature, top_p=settings.top_p,
        top_k=settings.top_k, stop_token_ids=_stop_token_ids(config, tokenizer),
        stop_strings=tuple(generation.stop_strings or ()),
    )  # fmt: skip


def _stop_token_ids(config: Config, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    return tuple(dict.fromkeys([tokenizer.eos_token_id, *(config.policy.generation.stop_token_ids or [])]))


def _check_context(config: Config, model_config: Any) -> None:
    limit = model_config.max_position_embeddings
    wanted = config.policy.max_total_sequence_length
    if wanted > limit:
        raise ConfigError(
            f"policy.max_total_sequence_length={wanted} is more than the {limit} positions of "
            f"policy.model_name={config.policy.model_name}"
        )
