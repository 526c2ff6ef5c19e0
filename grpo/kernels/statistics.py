"""What a reading of logits leaves, for the definition of its gradient and for the kernel."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Statistics(NamedTuple):
    """Of each row of logits [N, V] over a temperature, in the dtype of the logits."""

    logprobs: Tensor  # [N]: of its target; -inf where that is not among the V
    normaliser: Tensor  # [N]: log of the sum of exponentials
    entropy: Tensor | None  # [N]


def at_target(whole: Statistics, grad_logprobs: Tensor) -> Tensor:
    """[N]: grad_logprobs (1 - p) at the targets, exact however near 1 their probability is."""
    return grad_logprobs * -torch.expm1(whole.logprobs)
