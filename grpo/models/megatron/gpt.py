"""The Megatron-Core model: causal language model without its output product, over Megatron's own or TE's layers.

Imports Megatron-Core: import this module only where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor, nn

from grpo.errors import ConfigError
from grpo.kernels.norm import rms_norm
from grpo.kernels.swiglu import swiglu_joined
from grpo.models.megatron.extensions import use_own_extensions
from grpo.models.megatron.shape import ModelShape


@dataclass
class PackedRow(PackedSeqParams):  # type: ignore[misc]
    """Bounds of packed sequences, handed through Megatron's layers to the attention.

    `qkv_format` is "thd" for Transformer Engine. Otherwise it is not, so that Megatron applies the rotary embedding as
    to one sequence, with the positions that the model gave it, and need not wait for the device to learn the bounds.
    """

    lengths: list[int] = field(default_factory=list)  # empty: rows that are not packed
    cosine: Tensor | None = None  # [W, 1, D / 2] of the positions' angles, for layers other than Transformer Engine's
    sine: Tensor | None = None


class RMSNorm(nn.Module):
    """Root mean square norm whose weight is marked for the gradient sum of sequence parallelism.

    Megatron's own wrapper of torch's norm refuses sequence parallelism.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=parameter_device(config)))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self.weight, self.eps)


class SwigluMLP(MLP):  # type: ignore[misc]
    """Megatron's MLP without biases, its activation and product in one kernel."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        both, _bias = self.linear_fc1(hidden_states)
        output, _bias = self.linear_fc2(swiglu_joined(both))
        return output, None


def parameter_device(config: TransformerConfig) -> torch.device:
    """Where Megatron makes parameters."""
    return torch.device("cpu") if config.use_cpu_initialization else torch.device("cuda", torch.cuda.current_device())


def transformer_engine_usable(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether Transformer Engine is installed, there is a GPU, and the compute dtype is not float32.

    Its layers need a GPU. They round float32 to TF32 for every product, whatever torch is set to.

    Raises:
        ConfigError: it is installed and cannot be imported. Other layers in its place would be a surprise.
    """
    if device.type != "cuda" or dtype == torch.float32 or importlib.util.find_spec("transformer_engine") is None:
        return False
    try:
        importlib.import_module("transformer_engine.pytorch.fp8")  # as Megatron does, which hides why it fails
    except (ImportError, OSError, RuntimeError, AssertionError) as error:
        raise ConfigError(
            "policy.megatron_cfg.enabled is true and transformer_engine is installed, but it cannot be imported: "
            f"{error}; mend or uninstall it (without it Megatron-Core's own layers are used)"
        ) from error
    return True


def layer_specs(shape: ModelShape, layers: int, *, core_attention: Callable[..., nn.Module] | None) -> Any:
    """Specification of a stage of `layers` layers.

    `core_attention` is the attention between queries, keys and values of Megatron's own layers; None takes Transformer
    Engine's layers.
    """
    use_own_extensions()
    if core_attention is None:
        from megatron.core.extensions.transformer_engine import TENorm

        spec = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=shape.qk_norm)
        return TransformerBlockSubmodules(layer_specs=[spec] * layers, layer_norm=TENorm)
    spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=shape.qk_norm)
    spec.submodules.input_layernorm = RMSNorm
    spec.submodules.pre_mlp_layernorm = RMSNorm
    attention = spec.submodules.self_attention.submodules
    attention.core_attention = core_attention
    if shape.qk_norm:
        attention.q_layernorm = RMSNorm
        attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[spec] * layers, layer_norm=RMSNorm)


class PolicyGPT(GPTModel):  # type: ignore[misc]
    """One pipeline stage. Its output is hidden states, on the last stage those after the final norm."""

    def __init__(
        self, config: TransformerConfig, shape: ModelShape, specs: Any, *, first_stage: bool, last_stage: bool
    ) -> None:
        super().__init__(
            config=config,
            transformer_layer_spec=specs,
            vocab_size=shape.padded_vocab_size(config.tensor_model_parallel_size),
            max_sequence_length=shape.max_positions,
            pre_process=first_stage,
            post_process=last_stage,
            parallel_output=True,
            share_embeddings_and_output_weights=shape.tied,
            position_embedding_type="none",
        )
        self._padding_token = shape.padding_token
        self.register_buffer("rotary_frequencies", shape.rotary_frequencies.clone(), persistent=False)
        for layer in self.decoder.layers:
            layer.mlp.__class__ = SwigluMLP

    def forward(self, input_ids: Tensor, positions: Tensor, packed: PackedRow | None) -> Tensor:
        """input_ids [R, W], positions [W] -> [W, R, H], or this rank's part of W with sequence parallelism."""
        hidden = self._embedded(input_ids, positions) if self.pre_process else None
        if self.config.apply_rope_fusion and packed is not None:  # it counts positions from each sequence's first
            positions = torch.arange(packed.max_seqlen_q, device=positions.device)
        angles = torch.outer(positions.float(), self.rotary_frequencies)
        rotary: Tensor | None = None
        if self.config.apply_rope_fusion:
            rotary = torch.cat((angles, angles), -1)[:, None, None, :]
        else:  # by the attention between queries and keys
            cosine, sine = (each.to(self.config.params_dtype)[:, None] for each in (angles.cos(), angles.sin()))
            packed = replace(packed or PackedRow(qkv_format="sbhd"), cosine=cosine, sine=sine)
        return self.decoder(  # type: ignore[no-any-return]
            hidden_states=hidden, attention_mask=None, rotary_pos_emb=rotary, packed_seq_params=packed
        )

    def _embedded(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        hidden: Tensor = self.embedding(input_ids=input_ids, position_ids=positions)
        if self._padding_token is None or not torch.is_grad_enabled():
            return hidden
        untrained = (input_ids == self._padding_token).T.contiguous()  # so that the result is, as pipelines need
        if self.config.sequence_parallel:
            untrained = untrained.chunk(self.pg_collection.tp.size())[self.pg_collection.tp.rank()]
        return torch.where(untrained[..., None], hidden.detach(), hidden)

    @property
    def output_weight(self) -> Tensor:
        """[V / tensor parallel size, H] on the last stage."""
        weight = self.output_layer.weight
        if self.share_embeddings_and_output_weights:
            weight = self.shared_embedding_or_output_weight()
        assert isinstance(weight, Tensor)
        return weight
