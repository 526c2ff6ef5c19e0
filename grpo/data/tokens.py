"""Token ids of whole datasets, and proof that they say what the texts say."""

import unicodedata
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from grpo.errors import DataError

_PROBE = "a"


def tokenize(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, names: Sequence[str], templated: bool
) -> list[list[int]]:
    """Token ids of `texts`, in one batch.

    A text that a chat template wrote holds its special tokens already. Any other gets the tokens that the tokenizer
    puts before a text (a beginning of sequence, mostly), unless it starts with them; never those that it puts after
    one, since a completion follows.

    Raises DataError, naming the record, for a text that the tokenizer cannot represent or that has no tokens.
    """
    _check_encodable(texts, names)
    ids = _encode(texts, tokenizer)
    if not templated:
        prefix = _special_prefix(tokenizer)
        if prefix:
            ids = [row if row[: len(prefix)] == prefix else prefix + row for row in ids]
    _check_unknown(texts, ids, tokenizer, names)
    _check_dropped(texts, tokenizer, names)
    for row, name in zip(ids, names, strict=True):
        if not row:
            raise DataError(f"{name}: the prompt has no tokens")
    return ids


def check_vocabulary(
    ids: Sequence[Sequence[int]], vocab_size: int, tokenizer: PreTrainedTokenizerBase, *, names: Sequence[str]
) -> None:
    """Raise DataError, naming the record and the token, for an id for which the model has no embedding."""
    for row, name in zip(ids, names, strict=True):
        highest = max(row)
        if highest >= vocab_size:
            token = tokenizer.convert_ids_to_tokens(highest)
            raise DataError(
                f"{name}: token {token!r} has the id {highest}, and the model's vocabulary has {vocab_size} (ids 0 to "
                f"{vocab_size - 1}); policy.tokenizer.name does not fit policy.model_name"
            )


def _encode(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    if not texts:
        return []
    encoding = tokenizer(
        list(texts),
        add_special_tokens=False,
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    rows: list[list[int]] = encoding["input_ids"]
    return rows


def _special_prefix(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that the tokenizer puts before a text."""
    probe = next((c for c in (_PROBE, "0", *tokenizer.get_vocab()) if _encode([c], tokenizer)[0]), _PROBE)
    plain = _encode([probe], tokenizer)[0]
    full: list[int] = tokenizer(probe, add_special_tokens=True)["input_ids"]
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start]
    return []


def _check_encodable(texts: Sequence[str], names: Sequence[str]) -> None:
    for text, name in zip(texts, names, strict=True):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{name}: the prompt holds half of a surrogate pair at character {error.start}, which is no text"
            ) from error


def _check_unknown(
    texts: Sequence[str], ids: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase, names: Sequence[str]
) -> None:
    unknown = tokenizer.unk_token_id
    if unknown is None:
        return
    spelled = str(tokenizer.unk_token)
    for text, row, name in zip(texts, ids, names, strict=True):
        if unknown in row and list(row).count(unknown) > text.count(spelled):
            raise DataError(_unrepresentable(text, name, tokenizer, unknown))


def _unrepresentable(text: str, name: str, tokenizer: PreTrainedTokenizerBase, unknown: int) -> str:
    characters = sorted(set(text))
    bad = [
        c
        for c, row in zip(characters, _encode(characters, tokenizer), strict=True)
        if unknown in row and not c.isspace()
    ]
    what = f"the characters {', '.join(map(repr, bad))}" if bad else "some of its words"
    return f"{name}: the tokenizer has no token for {what} of the prompt {text[:60]!r}"


def _check_dropped(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, names: Sequence[str]) -> None:
    """A tokenizer without bytes and without an unknown token leaves out what it does not know, in silence."""
    characters = sorted(c for c in set().union(*texts) if not c.isspace() and unicodedata.category(c)[0] not in "CM")
    dropped = {c for c, row in zip(characters, _encode(characters, tokenizer), strict=True) if not row}
    if not dropped:
        return
    for text, name in zip(texts, names, strict=True):
        bad = sorted(dropped.intersection(text))
        if bad:
            shown = ", ".join(map(repr, bad))
            raise DataError(f"{name}: the tokenizer leaves out the characters {shown} of the prompt {text[:60]!r}")
