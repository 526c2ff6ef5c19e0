"""What the decode loop asks of a model: one prefill per prompt, then one token for every row at a time."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


class Decoder(Protocol):
    """A causal model with its key-value cache. Rows are sequences; all rows advance together.

    Prompts of different lengths are padded on the left, so that every row writes to the same column of the cache;
    positions count from a prompt's own first token.
    """

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Read tokens [P, L] int64, padded on the left, and lengths [P] int64 -> logits [P, V] after the last."""
        ...

    def fan_out(self, rows: Tensor, new_tokens: int) -> None:
        """Continue rows [N] int64 of the prefilled prompts (repeats allowed), each by at most `new_tokens` tokens."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens [N] int64 -> logits [N, V] for what follows."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these [M] int64."""
        ...

    def clear(self) -> None:
        """Forget the cache."""
        ...


class TransformersDecoder:
    """Any causal model of transformers, through its own forward and cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache: Any = None
        self._attention_mask = torch.empty(0, 0, dtype=torch.int64)
        self._positions = torch.empty(0, 1, dtype=torch.int64)

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        width = tokens.shape[1]
        columns = torch.arange(width, device=tokens.device)
        padding = (width - lengths)[:, None]
        self._attention_mask = (columns >= padding).long()
        self._positions = lengths[:, None]
        self._cache = DynamicCache(config=self._model.config)
        return self._forward(tokens, (columns - padding).clamp(min=0))

    def fan_out(self, rows: Tensor, new_tokens: int) -> None:
        del new_tokens
        self.keep(rows)

    def step(self, tokens: Tensor) -> Tensor:
        ones = self._attention_mask.new_ones(len(tokens), 1)
        self._attention_mask = torch.cat((self._attention_mask, ones), 1)
        logits = self._forward(tokens[:, None], self._positions)
        self._positions = self._positions + 1
        return logits

    def keep(self, rows: Tensor) -> None:
        self._cache.batch_select_indices(rows)
        self._attention_mask = self._attention_mask[rows]
        self._positions = self._positions[rows]

    def clear(self) -> None:
        self._cache = None

    def _forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        output = self._model(
            input_ids=tokens, attention_mask=self._attention_mask, position_ids=positions, past_key_values=self._cache,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        return output.logits[:, -1]  # type: ignore[no-any-return]
