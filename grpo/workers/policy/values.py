"""What the objective is given of one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from grpo.algorithm.objective import TokenValues
from grpo.batching.batch import Batch
from grpo.workers.policy.token_logprobs import TokenLogprobs
from grpo.workers.policy.transfer import together


class TrainedTokens(Protocol):
    """Which tokens of the batch a micro-batch predicts."""

    @property
    def targets(self) -> Tensor:
        """[N] int64: the tokens."""
        ...

    @property
    def trained(self) -> Tensor:
        """[N] int64 on the CPU: their positions in the batch; empty for a dummy."""
        ...

    @property
    def sequence_ids(self) -> Tensor:
        """[N] int64: which of the micro-batch's rows each belongs to."""
        ...


def token_values(batch: Batch, rows: Sequence[int], tokens: TrainedTokens, current: TokenLogprobs) -> TokenValues:
    """The trained tokens of a micro-batch of these rows of `batch`, on the device of `current`.

    A dummy has no rows: its one token is left out by the mask.
    """
    assert batch.advantages is not None, "training needs advantages"
    logprobs, device = current.logprobs, current.logprobs.device
    if not rows:
        return _of_dummy(batch, tokens, current)
    trained = tokens.trained.numpy()
    arrays = {"advantages": batch.advantages.numpy()[np.asarray(rows)]}
    for name in ("generation_logprobs", "old_logprobs", "reference_logprobs"):
        value = getattr(batch, name)
        if value is not None:
            arrays[name] = value.numpy()[trained]
    return TokenValues(
        logprobs=logprobs,
        mask=torch.ones_like(tokens.targets, dtype=torch.bool),
        sequence_ids=tokens.sequence_ids,
        num_sequences=len(rows),
        entropy=current.entropy,
        **together(arrays, device),
    )


def _of_dummy(batch: Batch, tokens: TrainedTokens, current: TokenLogprobs) -> TokenValues:
    zero = torch.zeros_like(current.logprobs)
    return TokenValues(
        logprobs=current.logprobs,
        mask=torch.zeros_like(tokens.targets, dtype=torch.bool),
        sequence_ids=torch.zeros_like(tokens.targets),
        num_sequences=1,
        advantages=zero,
        generation_logprobs=zero,
        old_logprobs=None if batch.old_logprobs is None else zero,
        reference_logprobs=None if batch.reference_logprobs is None else zero,
        entropy=current.entropy,
    )
