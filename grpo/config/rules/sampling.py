"""Conflicts of lengths and of how completions are sampled."""

from collections.abc import Iterator

from grpo.config.rules.conflict import Conflict, Rule
from grpo.config.schema import Config

_TOTAL = "policy.max_total_sequence_length"
_NEW = "policy.generation.max_new_tokens"
_GENERATION = "policy.generation"


def temperature(config: Config) -> Iterator[Conflict]:
    if config.policy.generation.temperature <= 0:
        yield Conflict(
            (f"{_GENERATION}.temperature",),
            f"training samples: it must be above 0; greedy completions are for {_GENERATION}.validation.temperature=0",
        )


def sampling_filter(config: Config) -> Iterator[Conflict]:
    for name, off in (("top_p", 1), ("top_k", None)):
        if getattr(config.policy.generation, name) != off:
            yield Conflict(
                (f"{_GENERATION}.{name}",),
                "the engine would report log-probs over the kept tokens, and the trainer has no such filter; valid: "
                f"{'1' if off else 'null'}. {_GENERATION}.validation.{name} may filter",
            )


def greedy_validation(config: Config) -> Iterator[Conflict]:
    validation = config.policy.generation.validation
    if validation.temperature > 0:
        return
    for name, off in (("top_p", 1), ("top_k", None)):
        if getattr(validation, name) != off:
            yield Conflict(
                (f"{_GENERATION}.validation.temperature", f"{_GENERATION}.validation.{name}"),
                "greedy completions filter nothing; raise the temperature, or leave the filter out",
            )


def new_tokens(config: Config) -> Iterator[Conflict]:
    total, generation = config.policy.max_total_sequence_length, config.policy.generation
    for key, longest in (
        (_NEW, generation.max_new_tokens),
        (f"{_GENERATION}.validation.max_new_tokens", generation.validation.max_new_tokens),
    ):
        if longest is not None and longest > total:
            yield Conflict((key, _TOTAL), f"prompt and completion share the total; at most {total}")
    if generation.max_new_tokens is not None and generation.min_new_tokens > generation.max_new_tokens:
        yield Conflict((f"{_GENERATION}.min_new_tokens", _NEW), "the first must be at most the second")
    if generation.min_new_tokens >= total:
        yield Conflict(
            (f"{_GENERATION}.min_new_tokens", _TOTAL),
            "there is no room for a prompt; the first must be below the second",
        )


def prompt_length(config: Config) -> Iterator[Conflict]:
    longest, total = config.data.max_input_seq_length, config.policy.max_total_sequence_length
    if longest is not None and longest >= total:
        yield Conflict(("data.max_input_seq_length", _TOTAL), f"no room for a completion; at most {total - 1}")


def model_length(config: Config) -> Iterator[Conflict]:
    held, total = config.policy.generation.vllm_cfg.max_model_len, config.policy.max_total_sequence_length
    if config.policy.generation.backend == "vllm" and held is not None and held < total:
        yield Conflict(
            (f"{_GENERATION}.vllm_cfg.max_model_len", _TOTAL),
            f"the engine would cut sequences that the trainer allows; at least {total}, or null",
        )


def replay(config: Config) -> Iterator[Conflict]:
    generation = config.policy.generation
    settings, key = generation.replay_lengths, f"{_GENERATION}.replay_lengths"
    if settings.file is None and settings.mean is None:
        return
    if settings.file is not None and settings.mean is not None:
        yield Conflict((f"{key}.file", f"{key}.mean"), "lengths are recorded or made; leave out one of the two")
    for name, off in (("min_new_tokens", 0), ("stop_token_ids", None), ("stop_strings", None)):
        if getattr(generation, name) not in (off, []):
            yield Conflict(
                (f"{key}.{'file' if settings.mean is None else 'mean'}", f"{_GENERATION}.{name}"),
                f"a completion has its drawn length whatever is sampled; leave out {name}",
            )
    longest = min(
        generation.max_new_tokens or config.policy.max_total_sequence_length,
        config.policy.max_total_sequence_length - 1,
    )
    if settings.mean is not None and settings.mean > longest:
        yield Conflict((f"{key}.mean", _NEW), f"the mean is above the longest that may be generated; at most {longest}")


RULES: tuple[Rule, ...] = (
    temperature, sampling_filter, greedy_validation, new_tokens, prompt_length, model_length, replay
)  # fmt: skip
