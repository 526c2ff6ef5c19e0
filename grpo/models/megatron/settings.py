"""Megatron-Core's TransformerConfig from a model's shape and its layout.

Imports Megatron-Core: import this module only where it is installed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from megatron.core.transformer import TransformerConfig

from grpo.models.megatron.shape import ModelShape


@dataclass(frozen=True)
class ParallelSizes:
    tensor: int = 1
    pipeline: int = 1
    sequence_parallel: bool = False


def transformer_config(
    shape: ModelShape,
    sizes: ParallelSizes,
    *,
    dtype: torch.dtype,
    on_cpu: bool,
    recompute: bool,
    transformer_engine: bool,
) -> TransformerConfig:
    """Of a policy in this layout; parameters are made uninitialised, in `dtype`.

    `calculate_per_token_loss` keeps Megatron from dividing the loss by micro-batches and the gradients by data parallel
    ranks: the objective's denominators are global already. It must stand before the model is wrapped in DDP.
    """
    pipelined = sizes.pipeline > 1
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_query_groups,
        kv_channels=shape.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_epsilon,
        qk_layernorm=shape.qk_norm,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        perform_initialization=False,
        use_cpu_initialization=on_cpu,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        # Megatron's fusions are extensions of apex and Transformer Engine, or compiled when first used: `gpt` and
        # `extensions` have their own. Transformer Engine's layers add weight gradients up and rotate by themselves.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=True,
        apply_rope_fusion=transformer_engine,
        tensor_model_parallel_size=sizes.tensor,
        pipeline_model_parallel_size=sizes.pipeline,
        sequence_parallel=sizes.sequence_parallel,
        pipeline_dtype=dtype,
        variable_seq_lengths=pipelined,  # micro-batches differ in shape
        moe_token_dispatcher_type="alltoall",  # noqa: S106 (there are no experts, but the default is refused with it)
        deallocate_pipeline_outputs=pipelined,
        calculate_per_token_loss=True,
        recompute_granularity="full" if recompute else None,
        recompute_method="uniform" if recompute else None,
        recompute_num_layers=1 if recompute else None,
    )
