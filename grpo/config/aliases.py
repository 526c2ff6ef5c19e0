"""NeMo-RL's keys that are spelt otherwise here: accepted where the meaning is exactly the same, else explained."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from grpo.config.tree import Branch, Leaf, find, put, take
from grpo.errors import ConfigError


@dataclass(frozen=True)
class Alias:
    """Another spelling of `new`; `values` translates its values, None takes them as they are."""

    new: str
    values: Mapping[Any, Any] | None = None


ALIASES: Mapping[str, Alias] = MappingProxyType({
    "loss_fn.token_level_loss": Alias("loss_fn.aggregation", {True: "token_mean", False: "seq_mean_token_mean"}),
    "loss_fn.sequence_level_importance_ratios": Alias("loss_fn.kind", {True: "gspo", False: "clipped"}),
    "loss_fn.truncated_importance_sampling_type": Alias("loss_fn.importance_sampling_correction_type"),
    "loss_fn.use_kl_in_reward": Alias("loss_fn.reference_policy_kl_in", {True: "reward", False: "loss"}),
    "data.prompt_file": Alias("data.default.prompt_file"),
    "data.system_prompt_file": Alias("data.default.system_prompt_file"),
})  # fmt: skip

_ONE_OPTIMIZER = "both backends take policy.optimizer and policy.scheduler"
_UPDATES_ON_GPU = (
    "the optimizer updates on the GPU; policy.generation.colocated.offload_optimizer moves its state in between"
)
_DDP = "policy.megatron_cfg.distributed_data_parallel_config"
_FIXED = "the backend chooses it; there is nothing to set"

# Keys that exist there and not here, by the longest prefix that is found.
HINTS: Mapping[str, str] = MappingProxyType({
    "loss_fn.truncated_importance_sampling_ratio_min": "use loss_fn.importance_sampling_ratio_min and _max",
    "loss_fn.use_on_policy_kl_approximation": "there is no such approximation; see loss_fn.kl_on_policy_gradient",
    "loss_fn.disable_ppo_ratio": "use loss_fn.force_on_policy_ratio",
    "grpo.adv_estimator": "use grpo.advantage_estimator: grpo, dr_grpo, rloo or reinforce_pp",
    "grpo.max_rollout_turns": "a rollout has one turn",
    "grpo.num_val_generations_per_prompt": "validation samples one completion of each prompt",
    "policy.optimizer.kwargs.foreach": _FIXED,
    "policy.optimizer.kwargs.fused": _FIXED,
    "policy.megatron_cfg.optimizer.lr": "use policy.optimizer.kwargs.lr",
    "policy.megatron_cfg.optimizer.clip_grad": "use policy.max_grad_norm",
    "policy.megatron_cfg.optimizer.use_distributed_optimizer": (
        f"use {_DDP}.use_distributed_optimizer"
    ),
    "policy.megatron_cfg.optimizer.optimizer_cpu_offload": _UPDATES_ON_GPU,
    "policy.megatron_cfg.optimizer.optimizer_offload_fraction": _UPDATES_ON_GPU,
    "policy.megatron_cfg.optimizer": _ONE_OPTIMIZER,
    "policy.megatron_cfg.scheduler.lr_warmup_iters": "use policy.scheduler.warmup_steps",
    "policy.megatron_cfg.scheduler": _ONE_OPTIMIZER,
    f"{_DDP}.grad_reduce_in_fp32": "gradients are always summed in float32",
    f"{_DDP}.average_in_collective": "gradients are summed, never averaged",
    f"{_DDP}.use_custom_fsdp": _FIXED,
    f"{_DDP}.data_parallel_sharding_strategy": _FIXED,
    "policy.megatron_cfg.pipeline_dtype": "policy.precision is the one precision",
    "policy.megatron_cfg.converter_type": "the converter follows from the model's architecture",
    "policy.megatron_cfg.empty_unused_memory_level": _FIXED,
    "policy.dtensor_cfg._v2": "there is one DTensor backend",
    "policy.dtensor_cfg.custom_parallel_plan": "the plan follows from the model's architecture",
    "policy.generation_batch_size": "the engine batches by itself; see policy.generation.vllm_cfg.max_num_seqs",
    "policy.generation.vllm_cfg.precision": "policy.precision is the one precision",
    "policy.generation.vllm_cfg.async_engine": _FIXED,
    "policy.generation.vllm_kwargs": "the engine's options are those of policy.generation.vllm_cfg",
    "data.dataset_name": "use data.train.kind=hub and data.train.dataset_name",
    "data.train_data_path": "use data.train.kind=file and data.train.data_path",
    "data.val_data_path": "use data.validation.kind=file and data.validation.data_path",
    "data.num_workers": "prompts are tokenised once, before the first step",
    "env.*.math_verify_impl": "use env.NAME.verifier=math",
    "checkpointing.save_consolidated": "`grpo checkpoint export` writes Hugging Face folders",
    "checkpointing.model_save_format": "`grpo checkpoint export` writes Hugging Face folders",
    "logger.swanlab_enabled": "loggers: tensorboard, wandb, mlflow",
    "logger.monitor_gpus": "memory is always measured",
    "logger.gpu_monitoring": "memory is always measured",
})  # fmt: skip


def hint_for(key: str) -> str | None:
    """What to use instead of a key of NeMo-RL."""
    parts = key.split(".")
    for length in range(len(parts), 1, -1):
        exact = ".".join(parts[:length])
        named = ".".join("*" if i == 1 and parts[0] == "env" else part for i, part in enumerate(parts[:length]))
        for one in (exact, named):
            if one in HINTS:
                return HINTS[one]
    return None


def apply_aliases(layer: Branch) -> list[str]:
    """Rewrite the aliases of one layer in place; a note for each. Raises ConfigError for both spellings together."""
    notes = []
    for old, alias in ALIASES.items():
        given = find(layer, old)
        if not isinstance(given, Leaf):
            continue
        other = find(layer, alias.new)
        if isinstance(other, Leaf):
            raise ConfigError(
                f"{old} ({given.origin}) and {alias.new} ({other.origin}) say the same thing: give one of them"
            )
        take(layer, old)
        value = _translated(old, alias, given)
        put(layer, alias.new, Leaf(value, f"{given.origin} as {old}"))
        notes.append(f"{old}={json.dumps(given.value)} ({given.origin}) is read as {alias.new}={json.dumps(value)}")
    return notes


def _translated(old: str, alias: Alias, given: Leaf) -> Any:
    if alias.values is None:
        return given.value
    if not isinstance(given.value, bool):
        raise ConfigError(
            f"{old} = {json.dumps(given.value)} ({given.origin}): expected true or false; here it is {alias.new}"
        )
    return alias.values[given.value]
