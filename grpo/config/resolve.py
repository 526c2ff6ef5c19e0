"""Filling in what follows from other keys."""

from collections.abc import Callable
from typing import Any

from grpo.config.layout import engine_parallel_size, layout, sequence_divisor
from grpo.config.schema import Config

Derived = tuple[Any, str] | None  # the value and the key that it follows from; None: stays null

_CAP = 2.0
_BOUNDS = {"icepop": (0.5, 5.0), "seq-mask-tis": (0.999, 1.002)}


def _max_new_tokens(config: Config) -> Derived:
    return config.policy.max_total_sequence_length, "policy.max_total_sequence_length"


def _of_generation(config: Config) -> Derived:
    return config.policy.generation.max_new_tokens, "policy.generation.max_new_tokens"


def _norm_length(config: Config) -> Derived:
    return _of_generation(config) if config.loss_fn.aggregation == "seq_mean_token_sum_norm" else None


def _cap(config: Config) -> Derived:
    kind = config.loss_fn.importance_sampling_correction_type
    return (_CAP, "loss_fn.importance_sampling_correction_type") if kind in ("tis", "mis") else None


def _bound(index: int) -> Callable[[Config], Derived]:
    def derive(config: Config) -> Derived:
        bounds = _BOUNDS.get(config.loss_fn.importance_sampling_correction_type)
        return None if bounds is None else (bounds[index], "loss_fn.importance_sampling_correction_type")

    return derive


def _mb_tokens(batch_key: str) -> Callable[[Config], Derived]:
    def derive(config: Config) -> Derived:
        batch = getattr(config.policy, batch_key)
        return config.policy.max_total_sequence_length * batch, f"policy.max_total_sequence_length x policy.{batch_key}"

    return derive


def _max_input(config: Config) -> Derived:
    room = max(1, config.policy.generation.min_new_tokens)
    left = config.policy.max_total_sequence_length - room
    return (left, "policy.max_total_sequence_length") if left > 0 else None


def _env_name(config: Config) -> Derived:
    if config.data.default.env_name is not None:
        return config.data.default.env_name, "data.default.env_name"
    return (next(iter(config.env)), "env") if len(config.env) == 1 else None


def _divisor(config: Config) -> Derived:
    return sequence_divisor(config, needed=False), "the parallel sizes"


def _cpu_engine_ranks(config: Config) -> Derived:
    if config.cluster.gpus_per_node:
        return None
    return engine_parallel_size(config), "policy.generation.vllm_cfg.tensor_parallel_size"


def _launcher(config: Config) -> Derived:
    cluster, ranks = config.cluster, layout(config)
    if max(cluster.num_nodes * cluster.gpus_per_node, ranks.training_gpus, ranks.generation_gpus) > 1:
        return "ray", "the number of processes"
    if not config.policy.generation.colocated.enabled:
        return "ray", "policy.generation.colocated.enabled"
    return ("ray", "cluster.ray_address") if cluster.ray_address is not None else ("in_process", "one process")


def _generation_nodes(config: Config) -> Derived:
    resources = config.policy.generation.colocated.resources
    alone = config.cluster.num_nodes == 1 and resources.gpus_per_node is not None
    return (1, "cluster.num_nodes") if alone else None


def _generation_gpus(config: Config) -> Derived:
    resources = config.policy.generation.colocated.resources
    whole = config.cluster.num_nodes > 1 and resources.num_nodes is not None and config.cluster.gpus_per_node > 0
    return (config.cluster.gpus_per_node, "cluster.gpus_per_node") if whole else None


# In order: later ones may follow from earlier ones. What depends on the machine or on the model's files stays null.
DERIVATIONS: tuple[tuple[str, Callable[[Config], Derived]], ...] = (
    ("policy.tokenizer.name", lambda config: (config.policy.model_name, "policy.model_name")),
    ("policy.generation.max_new_tokens", _max_new_tokens),
    ("policy.generation.validation.max_new_tokens", _of_generation),
    (
        "policy.generation.vllm_cfg.max_model_len",
        lambda config: (config.policy.max_total_sequence_length, "policy.max_total_sequence_length"),
    ),
    ("cluster.cpu_engine_ranks", _cpu_engine_ranks),
    ("cluster.launcher", _launcher),
    ("policy.generation.colocated.resources.num_nodes", _generation_nodes),
    ("policy.generation.colocated.resources.gpus_per_node", _generation_gpus),
    ("policy.dynamic_batching.train_mb_tokens", _mb_tokens("train_micro_batch_size")),
    ("policy.dynamic_batching.logprob_mb_tokens", _mb_tokens("logprob_batch_size")),
    ("policy.sequence_packing.train_mb_tokens", _mb_tokens("train_micro_batch_size")),
    ("policy.sequence_packing.logprob_mb_tokens", _mb_tokens("logprob_batch_size")),
    ("policy.make_sequence_length_divisible_by", _divisor),
    ("grpo.reward_shaping.max_response_length", _of_generation),
    ("loss_fn.aggregation_norm_length", _norm_length),
    ("loss_fn.truncated_importance_sampling_ratio", _cap),
    ("loss_fn.importance_sampling_ratio_min", _bound(0)),
    ("loss_fn.importance_sampling_ratio_max", _bound(1)),
    ("data.max_input_seq_length", _max_input),
    ("data.train.env_name", _env_name),
    ("data.validation.env_name", _env_name),
    ("checkpointing.checkpoint_dir", lambda config: (f"{config.logger.log_dir}/checkpoints", "logger.log_dir")),
)


def resolve(config: Config) -> tuple[Config, dict[str, str]]:
    """The configuration with derived values in place of nulls, and for each such key what it follows from."""
    derived = {}
    for key, derive in DERIVATIONS:
        values = config.model_dump()
        *way, last = key.split(".")
        section = values
        for name in way:
            section = section[name] if section is not None else None
        if section is None or section[last] is not None:
            continue
        found = derive(config)
        if found is None or found[0] is None:
            continue
        section[last], derived[key] = found
        config = Config.model_validate(values)
    return config, derived
