"""Stop strings: the token that completes one is the last."""

import pytest

from grpo.models.loading import load_tokenizer
from grpo.models.shipped import SHAPES
from grpo.workers.generation.stopping import StopStrings
from grpo.workers.protocol import SamplingParams


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(SHAPES / "tiny-llama")


def cut(tokenizer, text: str, *strings: str, min_new_tokens: int = 0) -> int | None:
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert len(tokens) == len(text.encode())
    stop = StopStrings(tokenizer, SamplingParams(99, stop_strings=strings, min_new_tokens=min_new_tokens))
    return stop.cut(tokens)


def test_the_completing_token_stays(tokenizer):
    assert cut(tokenizer, "one\n\ntwo", "\n\n") == 5
    assert cut(tokenizer, "one\n\n", "\n\n") == 5
    assert cut(tokenizer, "one\n", "\n\n") is None
    assert cut(tokenizer, "", "x") is None


def test_the_first_string_to_be_complete_counts(tokenizer):
    assert cut(tokenizer, "abcdef", "def", "bcd") == 4
    assert cut(tokenizer, "abcabc", "abcabc", "c") == 3


def test_a_string_of_several_bytes_is_complete_with_its_last(tokenizer):
    assert cut(tokenizer, "naïve", "ï") == 4


def test_text_of_the_first_tokens_does_not_stop(tokenizer):
    assert cut(tokenizer, "stop here stop", "stop", min_new_tokens=4) == 14
    assert cut(tokenizer, "stop here stop", "stop", min_new_tokens=14) is None
    assert cut(tokenizer, "stop", "stop", min_new_tokens=3) is None
