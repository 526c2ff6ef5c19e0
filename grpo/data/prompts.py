"""From a dataset of the recipe to tokenised prompts."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from grpo.config.schema import Data, Dataset, Policy
from grpo.data.prompt import Prompt, fingerprint_of
from grpo.data.render import Renderer
from grpo.data.sources import read_examples
from grpo.data.tokens import check_vocabulary, tokenize
from grpo.errors import DataError


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one dataset."""

    prompts: list[Prompt]
    dropped_too_long: int  # prompts over the limit that `data.overlong_prompts=drop` left out
    fingerprint: str  # sha256 over token ids and answers


def load_prompts(
    dataset: Dataset,
    data: Data,
    policy: Policy,
    tokenizer: PreTrainedTokenizerBase,
    *,
    vocab_size: int | None = None,
    key: str = "data.train",
) -> PromptSet:
    """Read, render and tokenise `dataset`.

    Args:
        dataset: `data.train` or `data.validation`.
        data: the section around it, for defaults and limits.
        policy: for the chat template and the length limit.
        tokenizer: of the policy.
        vocab_size: rows of the model's embedding; None: not checked.
        key: the place of `dataset` in the recipe, for error messages.

    Raises:
        DataError: nothing to read, a record that cannot be used, a text that the tokenizer cannot represent, an id
            outside the vocabulary, a prompt over the limit with `overlong_prompts=error`, or no prompt left.

    """
    env_name = dataset.env_name or data.default.env_name
    if env_name is None:
        raise DataError(f"{key}.env_name: not set, nor data.default.env_name; name the entry of `env` that scores it")
    with _collector_paused():
        return _load(dataset, data, policy, tokenizer, vocab_size=vocab_size, env_name=env_name, key=key)


def prompt_limit(data: Data, policy: Policy) -> int:
    """The most tokens of a prompt: `data.max_input_seq_length`, and always room for one new token."""
    room = policy.max_total_sequence_length - 1
    return room if data.max_input_seq_length is None else min(room, data.max_input_seq_length)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Records hold no reference cycles: looking for them takes as long as reading a hundred thousand records."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _load(
    dataset: Dataset,
    data: Data,
    policy: Policy,
    tokenizer: PreTrainedTokenizerBase,
    *,
    vocab_size: int | None,
    env_name: str,
    key: str,
) -> PromptSet:
    found = read_examples(dataset, key=key)
    names = [example.example_id for example in found]
    renderer = Renderer.build(data.default, policy.tokenizer, tokenizer)
    texts = renderer.render([example.prompt for example in found], names)
    ids = tokenize(texts, tokenizer, names=names, templated=renderer.templated)
    if vocab_size is not None:
        check_vocabulary(ids, vocab_size, tokenizer, names=names)
    prompts = [
        Prompt(example.example_id, text, tuple(row), env_name, example.answer, example.record)
        for example, text, row in zip(found, texts, ids, strict=True)
    ]
    limit = prompt_limit(data, policy)
    kept = [prompt for prompt in prompts if len(prompt.token_ids) <= limit]
    _check_lengths(prompts, kept, limit=limit, refuse=data.overlong_prompts == "error", key=key)
    return PromptSet(kept, len(prompts) - len(kept), fingerprint_of(kept))


def _check_lengths(prompts: Sequence[Prompt], kept: Sequence[Prompt], *, limit: int, refuse: bool, key: str) -> None:
    if len(kept) == len(prompts):
        return
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids))
    what = (
        f"{key}: {len(prompts) - len(kept)} of {len(prompts)} prompts are longer than {limit} tokens, the longest "
        f"{longest.prompt_id} with {len(longest.token_ids)}"
    )
    raise_it = "raise policy.max_total_sequence_length or data.max_input_seq_length"
    if refuse:
        raise DataError(f"{what}; {raise_it}, or set data.overlong_prompts=drop")
    if not kept:
        raise DataError(f"{what}, so that none is left; {raise_it}")
