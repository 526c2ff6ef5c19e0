"""A language model as the policy uses it: from a micro-batch to the log-probs of its trained tokens."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from grpo.config.schema import Policy
from grpo.models.parallel_plans import shard_range
from grpo.workers.policy.architecture import output_weight
from grpo.workers.policy.forward import ModelInputs, predictor_states
from grpo.workers.policy.token_logprobs import TokenLogprobs, WideGradient, token_logprobs
from grpo.workers.policy.vocabulary_parallel import vocabulary_parallel_logprobs


class LogprobModel(nn.Module):
    """Runs `model` and its output weight in one forward pass, which is where FSDP gathers and frees parameters."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        chunk_size: int | None,
        head_gradient: WideGradient | None = None,
    ) -> None:
        """`head_gradient` takes the gradient of the output weight's use here in its place."""
        super().__init__()
        self.model, self._head_gradient = model, head_gradient
        self._temperature, self._chunk_size = temperature, chunk_size

    @classmethod
    def of(cls, model: PreTrainedModel, policy: Policy, head_gradient: WideGradient | None = None) -> LogprobModel:
        return cls(
            model,
            temperature=policy.generation.temperature,
            chunk_size=policy.logprob_chunk_size,
            head_gradient=head_gradient,
        )

    def forward(self, inputs: ModelInputs, *, with_entropy: bool) -> TokenLogprobs:
        hidden, weight = predictor_states(self.model, inputs), output_weight(self.model)
        if not isinstance(weight, DTensor):
            return token_logprobs(
                hidden, weight, inputs.targets, gradient=self._head_gradient,
                temperature=self._temperature, chunk_size=self._chunk_size, with_entropy=with_entropy,
            )  # fmt: skip
        mesh = weight.device_mesh  # of the tensor parallel ranks: over data parallel ones it is whole here
        first_row, _ = shard_range(weight.shape[0], mesh.get_local_rank(), mesh.size())
        return vocabulary_parallel_logprobs(
            hidden, weight.to_local(), inputs.targets,
            first_row=first_row, group=mesh.get_group(),
            temperature=self._temperature, chunk_size=self._chunk_size, with_entropy=with_entropy,
        )  # fmt: skip


def matrix_parameters(model: PreTrainedModel) -> int:
    """Elements of all matrices that every token passes: no norms, no embedding but as the output weight."""
    layers: torch.nn.Module = model.get_decoder().layers  # type: ignore[no-untyped-call]
    return sum(each.numel() for each in layers.parameters() if each.ndim == 2) + output_weight(model).numel()


def attention_width(model: PreTrainedModel) -> int:
    """Layers x heads x head size."""
    attention = model.get_decoder().layers[0].self_attn  # type: ignore[no-untyped-call]
    config = model.config
    return int(config.num_hidden_layers * config.num_attention_heads * attention.head_dim)
