"""What the objective is given of one micro-batch."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo.algorithm.objective import TokenValues
from grpo.batching.batch import Batch
from grpo.batching.micro_batches import MicroBatch
from grpo.workers.policy.forward import ModelInputs
from grpo.workers.policy.token_logprobs import TokenLogprobs
from grpo.workers.policy.transfer import to_device


def token_values(batch: Batch, micro: MicroBatch, inputs: ModelInputs, current: TokenLogprobs) -> TokenValues:
    """The trained tokens of `micro` on the device of `current`; of a dummy its one token, which the mask leaves out."""
    assert batch.advantages is not None, "training needs advantages"
    logprobs, device = current.logprobs, current.logprobs.device
    if not micro.rows:
        return _of_dummy(batch, inputs, current)
    return TokenValues(
        logprobs=logprobs,
        mask=torch.ones_like(inputs.targets, dtype=torch.bool),
        sequence_ids=to_device(inputs.sequence_ids, device),
        num_sequences=len(micro.rows),
        advantages=to_device(batch.advantages[torch.as_tensor(micro.rows)], device),
        generation_logprobs=to_device(batch.generation_logprobs[inputs.trained], device),
        old_logprobs=_at(batch.old_logprobs, inputs.trained, device),
        reference_logprobs=_at(batch.reference_logprobs, inputs.trained, device),
        entropy=current.entropy,
    )


def _of_dummy(batch: Batch, inputs: ModelInputs, current: TokenLogprobs) -> TokenValues:
    zero = torch.zeros_like(current.logprobs)
    return TokenValues(
        logprobs=current.logprobs,
        mask=torch.zeros_like(inputs.targets, dtype=torch.bool),
        sequence_ids=torch.zeros_like(inputs.targets),
        num_sequences=1,
        advantages=zero,
        generation_logprobs=zero,
        old_logprobs=None if batch.old_logprobs is None else zero,
        reference_logprobs=None if batch.reference_logprobs is None else zero,
        entropy=current.entropy,
    )


def _at(values: Tensor | None, index: Tensor, device: torch.device) -> Tensor | None:
    return None if values is None else to_device(values[index], device)
