"""Stop strings: where a completion ends because its text holds one."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from grpo.workers.protocol import SamplingParams


class StopStrings:
    """Finds the token that completes a stop string.

    That token is the completion's last: ids and log-probs stay as sampled, only the finish reason says "stop". Text of
    the first `min_new_tokens` tokens does not stop a completion.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, sampling: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._strings = sampling.stop_strings
        self._min_new_tokens = sampling.min_new_tokens

    def cut(self, tokens: Sequence[int]) -> int | None:
        """How many of the tokens to keep; None if no stop string is complete."""
        offset = len(self._text(tokens[: self._min_new_tokens]))

        def stopped(count: int) -> bool:
            text = self._text(tokens[:count])
            return any(text.find(string, offset) >= 0 for string in self._strings)

        if not stopped(len(tokens)):
            return None
        # A string that is there stays there as tokens follow, so halving finds the first count that has one.
        low, high = 0, len(tokens)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if stopped(middle) else (middle + 1, high)
        return low

    def _text(self, tokens: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text
