"""Micro-batches through the pipeline, by Megatron's own schedules (1F1B where there is more than one stage).

Imports Megatron-Core: import this module only where it is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn

from grpo.workers.megatron.inputs import InputStream, MegatronInputs
from grpo.workers.megatron.parallel import Place

# From the hidden states of the last stage to the loss of a micro-batch.
Head = Callable[[MegatronInputs, Tensor], Tensor]


def run(module: nn.Module, micros: InputStream, head: Head, place: Place, *, train: bool) -> None:
    """Call `head` on the last stage with each micro-batch and its hidden states; with `train`, propagate its results.

    `module` is the stage, or Megatron's DDP around it.
    """

    def step(inputs: Iterator[MegatronInputs], model: nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
        micro = next(inputs)
        hidden = model(micro.input_ids, micro.positions, micro.packed)
        return hidden, partial(_loss, head, micro)

    with torch.set_grad_enabled(train):
        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=iter(micros),
            model=[module],
            num_microbatches=len(micros),
            seq_length=place.sizes.tensor,  # of no effect: stages tell each other the shapes
            micro_batch_size=1,
            forward_only=not train,
        )


def predictor_states(hidden: Tensor, micro: MegatronInputs, place: Place) -> Tensor:
    """[N, H] on every tensor parallel rank, from the last stage's output. Each rank is to have the whole gradient."""
    if place.sizes.sequence_parallel:
        hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
    return hidden.flatten(0, 1).index_select(0, micro.predictors)


def _loss(head: Head, micro: MegatronInputs, hidden: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """As Megatron's schedules want it: the loss, a count that `calculate_per_token_loss` adds up, a report."""
    return head(micro, hidden), torch.zeros((), dtype=torch.int, device=hidden.device), {}
