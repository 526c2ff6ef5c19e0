"""The configuration that the measured workers are given."""

from __future__ import annotations

from typing import Any

from grpo.config.schema import Config

LEARNING_RATE = 1e-6
ADAMW: dict[str, Any] = {"lr": LEARNING_RATE, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
MAX_GRAD_NORM = 1.0


def worker_config(
    cap: int,
    *,
    precision: str,
    backend: str = "dtensor",
    checkpointing: bool = False,
    gpus: int = 1,
    cap_logprob: int = 0,
    cpu_offload: bool = False,
) -> Config:
    """Clipped loss over old log-probs, mean over tokens, no KL term; packs of `cap` tokens."""
    backend_settings: dict[str, Any] = {"activation_checkpointing": checkpointing}
    if cpu_offload:
        backend_settings["cpu_offload"] = True
    if backend == "megatron":
        backend_settings["enabled"] = True
    return Config.model_validate(
        {
            "grpo": {"num_prompts_per_step": 1, "num_generations_per_prompt": 2},
            "policy": {
                "model_name": "by its shape",
                "random_weights": True,
                "precision": precision,
                "train_global_batch_size": 2,
                "max_total_sequence_length": cap + 1,
                "max_grad_norm": MAX_GRAD_NORM,
                "sequence_packing": {
                    "enabled": True, "train_mb_tokens": cap, "logprob_mb_tokens": cap_logprob or cap,
                },
                "optimizer": {"kwargs": ADAMW},
                "megatron_cfg" if backend == "megatron" else "dtensor_cfg": backend_settings,
                **({"dtensor_cfg": {"enabled": False}} if backend == "megatron" else {}),
            },
            "loss_fn": {
                "reference_policy_kl_penalty": 0.0, "force_on_policy_ratio": False, "aggregation": "token_mean",
                "ratio_clip_min": 0.2, "ratio_clip_max": 0.2, "entropy_coef": 0.0,
            },
            "cluster": {"gpus_per_node": gpus},
            "data": {"train": {"kind": "file", "data_path": "unused.jsonl"}},
            "env": {},
        }
    )  # fmt: skip
