# ruff: noqa: E501 - one case a line
import pytest

from grpo.config import load_config
from grpo.errors import ConfigError

# Overrides on a recipe, then the keys that the message must name and a part of what it must say.
CONFLICTS = [
    (
        "tiny",
        "checkpointing.checkpoint_must_save_by=00:03:45:00 checkpointing.enabled=false",
        ["checkpointing.checkpoint_must_save_by", "checkpointing.enabled"],
        "nothing is saved",
    ),
    ("tiny", "grpo.num_generations_per_prompt=0", ["grpo.num_generations_per_prompt = 0"], "at least 2"),
    ("tiny", "grpo.num_generations_per_prompt=1", ["grpo.num_generations_per_prompt = 1"], "at least 2"),
    ("tiny", "grpo.num_generations_per_prompt=-1", ["grpo.num_generations_per_prompt = -1"], "at least 2"),
    ("tiny", "policy.train_global_batch_size=500", ["grpo.num_prompts_per_step = 32", "grpo.num_generations_per_prompt = 16", "policy.train_global_batch_size = 500"], "valid batches: 16, 32, 64, 128, 256, 512"),
    ("tiny", "policy.train_global_batch_size=1024", ["policy.train_global_batch_size = 1024"], "not a multiple"),
    ("tiny", "policy.train_global_batch_size=256", ["loss_fn.force_on_policy_ratio = true", "policy.train_global_batch_size = 256"], "2 updates"),
    ("tiny", "loss_fn.kind=gspo", ["loss_fn.kind", 'loss_fn.aggregation = "token_mean"'], "seq_mean_token_mean"),
    ("tiny", "loss_fn.kind=gspo loss_fn.aggregation=seq_mean_token_sum", ["loss_fn.aggregation"], "seq_mean_token_mean"),
    ("tiny", "loss_fn.kind=cispo loss_fn.ratio_clip_c=3 loss_fn.force_on_policy_ratio=false", ["loss_fn.kind", "loss_fn.ratio_clip_c = 3.0"], "CISPO"),
    ("tiny", "loss_fn.ratio_clip_c=3", ["loss_fn.force_on_policy_ratio", "loss_fn.ratio_clip_c"], "always 1"),
    ("tiny", "loss_fn.aggregation_norm_length=9", ["loss_fn.aggregation_norm_length = 9", "loss_fn.aggregation"], "null"),
    ("tiny", "loss_fn.reference_policy_kl_in=reward", ["loss_fn.reference_policy_kl_in", "loss_fn.reference_policy_kl_penalty = 0.0"], "above 0"),
    ("tiny", "loss_fn.reference_policy_kl_in=reward loss_fn.reference_policy_kl_penalty=.1 loss_fn.kl_on_policy_gradient=false", ["loss_fn.kl_on_policy_gradient = false"], "no gradient"),
    ("tiny", "loss_fn.truncated_importance_sampling_ratio=2", ['loss_fn.importance_sampling_correction_type = "token"', "loss_fn.truncated_importance_sampling_ratio = 2.0"], "tis or mis"),
    ("tiny", "loss_fn.importance_sampling_correction_type=icepop loss_fn.truncated_importance_sampling_ratio=2", ["loss_fn.truncated_importance_sampling_ratio"], "loss_fn.importance_sampling_ratio_max"),
    ("tiny", "loss_fn.importance_sampling_correction_type=tis loss_fn.importance_sampling_ratio_min=.5", ["loss_fn.importance_sampling_ratio_min = 0.5"], "icepop or seq-mask-tis"),
    ("tiny", "loss_fn.importance_sampling_ratio_max=2", ["loss_fn.importance_sampling_ratio_max = 2.0"], "icepop or seq-mask-tis"),
    ("tiny", "loss_fn.importance_sampling_correction_type=icepop loss_fn.importance_sampling_ratio_min=5", ["loss_fn.importance_sampling_ratio_min = 5.0", "loss_fn.importance_sampling_ratio_max = 5.0"], "below"),
    ("tiny", "grpo.reward_shaping.enabled=true", ["grpo.reward_shaping.overlong_buffer_length = 128", "grpo.reward_shaping.max_response_length = 2"], "below"),
    ("tiny", "grpo.reward_shaping.enabled=true grpo.reward_shaping.max_response_length=200", ["policy.generation.max_new_tokens = 2"], "long enough"),
    ("tiny", "grpo.reward_scaling.enabled=true grpo.reward_scaling.source_max=0", ["grpo.reward_scaling.source_min", "grpo.reward_scaling.source_max"], "below"),
    ("tiny", "grpo.reward_scaling.enabled=true grpo.reward_scaling.target_max=0", ["grpo.reward_scaling.target_min", "grpo.reward_scaling.target_max"], "differ"),
    ("tiny", "policy.generation.temperature=0", ["policy.generation.temperature = 0.0"], "above 0; greedy completions are for policy.generation.validation.temperature"),
    ("tiny", "policy.generation.temperature=-1", ["policy.generation.temperature = -1.0"], "above 0"),
    ("tiny", "policy.generation.top_p=.9", ["policy.generation.top_p = 0.9"], "valid: 1"),
    ("tiny", "policy.generation.top_k=5", ["policy.generation.top_k = 5"], "valid: null"),
    ("tiny", "policy.generation.top_k=-1", ["policy.generation.top_k = -1"], "valid: null"),
    ("tiny", "policy.generation.validation.top_p=.9", ["policy.generation.validation.temperature = 0.0", "policy.generation.validation.top_p = 0.9"], "greedy"),
    ("tiny", "policy.generation.max_new_tokens=17", ["policy.generation.max_new_tokens = 17", "policy.max_total_sequence_length = 16"], "at most 16"),
    ("tiny", "policy.generation.validation.max_new_tokens=17", ["policy.generation.validation.max_new_tokens = 17"], "at most 16"),
    ("tiny", "policy.generation.min_new_tokens=3", ["policy.generation.min_new_tokens = 3", "policy.generation.max_new_tokens = 2"], "at most"),
    ("tiny", "policy.generation.min_new_tokens=16 policy.generation.max_new_tokens=16", ["policy.generation.min_new_tokens = 16"], "room for a prompt"),
    ("tiny", "data.max_input_seq_length=16", ["data.max_input_seq_length = 16", "policy.max_total_sequence_length = 16"], "at most 15"),
    ("grpo_math_1b", "policy.generation.vllm_cfg.max_model_len=256", ["policy.generation.vllm_cfg.max_model_len = 256", "policy.max_total_sequence_length = 512"], "at least 512"),
    ("tiny", "cluster.cpu_ranks=2 cluster.launcher=in_process", ["cluster.cpu_ranks = 2", 'cluster.launcher = "in_process"'], "launcher=ray"),
    ("grpo_math_8b", "cluster.launcher=in_process", ["cluster.gpus_per_node = 8", 'cluster.launcher = "in_process"'], "launcher=ray"),
    ("tiny", "cluster.ray_address=auto cluster.launcher=in_process", ['cluster.ray_address = "auto"', 'cluster.launcher = "in_process"'], "launcher=ray"),
    ("grpo_math_1b", "cluster.cpu_ranks=2 cluster.launcher=ray", ["cluster.cpu_ranks = 2", "cluster.gpus_per_node = 1"], "one rank a GPU"),
    ("tiny", "cluster.cpu_ranks=3 cluster.launcher=ray policy.dtensor_cfg.tensor_parallel_size=2", ["policy.dtensor_cfg.tensor_parallel_size = 2", "cluster.cpu_ranks = 3"], "do not divide the 3"),
    ("tiny", "policy.dtensor_cfg.enabled=false", ["policy.dtensor_cfg.enabled = false", "policy.megatron_cfg.enabled = false"], "exactly one"),
    ("tiny", "policy.megatron_cfg.enabled=true", ["policy.dtensor_cfg.enabled = true", "policy.megatron_cfg.enabled = true"], "exactly one"),
    ("grpo_math_1b", "cluster.cpu_threads=2", ["cluster.cpu_threads = 2", "cluster.gpus_per_node = 1"], "CPU runs"),
    ("tiny", "cluster.num_nodes=2 cluster.cpu_ranks=3", ["cluster.num_nodes = 2", "cluster.cpu_ranks = 3"], "a divisor of them"),
    ("tiny", "policy.dtensor_cfg.cpu_offload=true", ["policy.dtensor_cfg.cpu_offload", "cluster.gpus_per_node = 0"], "nothing to offload"),
    ("tiny", "policy.generation.colocated.enabled=false cluster.launcher=in_process", ["policy.generation.colocated.enabled = false", 'cluster.launcher = "in_process"'], "launcher=ray"),
    ("tiny", "grpo.async_grpo.enabled=true", ["grpo.async_grpo.enabled = true", "policy.generation.colocated.enabled = true"], "devices of its own"),
    ("tiny", "grpo.async_grpo.enabled=true", ["loss_fn.use_importance_sampling_correction = false"], "older weights"),
    ("tiny", "grpo.async_grpo.enabled=true", ["loss_fn.force_on_policy_ratio = true"], "off-policy"),
    ("tiny", "grpo.async_grpo.in_flight_weight_updates=true", ["grpo.async_grpo.in_flight_weight_updates = true", "grpo.async_grpo.enabled = false"], "nothing is in flight"),
    ("tiny", "grpo.async_grpo.in_flight_weight_updates=true", ['policy.generation.backend = "hf"'], "only vllm"),
    ("tiny", "grpo.async_grpo.recompute_kv_cache_after_weight_updates=true", ["grpo.async_grpo.in_flight_weight_updates = false"], "set false"),
    ("grpo_math_8b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.gpus_per_node=4 policy.offload_reference=true", ["policy.offload_reference = true", "policy.generation.colocated.enabled = false"], "stays on its GPUs in every phase, and so does the engine; false"),
    ("grpo_math_8b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.gpus_per_node=4 policy.offload_optimizer_for_logprob=true", ["policy.offload_optimizer_for_logprob = true", "policy.generation.colocated.enabled = false"], "or set enabled to true"),
    ("grpo_math_8b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.gpus_per_node=4 policy.generation.colocated.offload_optimizer=true", ["policy.generation.colocated.offload_optimizer = true", "policy.generation.colocated.enabled = false"], "in every phase"),
    ("grpo_math_8b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.gpus_per_node=4 policy.generation.colocated.offload_parameters=true", ["policy.generation.colocated.offload_parameters = true", "policy.generation.colocated.enabled = false"], "in every phase"),
    ("grpo_math_8b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.gpus_per_node=4 policy.generation.colocated.sleep_level=2", ["policy.generation.colocated.sleep_level = 2", "policy.generation.colocated.enabled = false"], "so does the engine; 0, or set enabled to true"),
    ("grpo_math_8b", "policy.dtensor_cfg.cpu_offload=true policy.generation.colocated.offload_optimizer=true", ["policy.dtensor_cfg.cpu_offload = true", "policy.generation.colocated.offload_optimizer = true"], "already"),
    ("grpo_math_8b", "policy.dtensor_cfg.cpu_offload=true policy.offload_reference=true", ["policy.dtensor_cfg.cpu_offload = true", "policy.offload_reference = true"], "already"),
    ("tiny", "policy.offload_reference=true", ["policy.offload_reference = true", "loss_fn.reference_policy_kl_penalty = 0.0"], "no reference"),
    ("grpo_math_8b", "policy.generation.colocated.resources.gpus_per_node=2", ["policy.generation.colocated.enabled = true", "policy.generation.colocated.resources.gpus_per_node = 2"], "false"),
    ("grpo_math_8b", "policy.generation.colocated.enabled=false", ["policy.generation.colocated.resources.gpus_per_node = null"], "gpus_per_node 1 to 7"),
    ("grpo_math_8b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.gpus_per_node=8", ["policy.generation.colocated.resources.gpus_per_node = 8"], "gpus_per_node 1 to 7"),
    ("grpo_math_70b", "policy.generation.colocated.enabled=false", ["policy.generation.colocated.resources.num_nodes = null"], "num_nodes 1 to 7"),
    ("grpo_math_70b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.num_nodes=8", ["policy.generation.colocated.resources.num_nodes = 8"], "num_nodes 1 to 7"),
    ("grpo_math_70b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.num_nodes=4 policy.generation.colocated.resources.gpus_per_node=4", ["policy.generation.colocated.resources.gpus_per_node = 4"], "gpus_per_node 8"),
    ("grpo_math_8b", "policy.dtensor_cfg.tensor_parallel_size=3", ["policy.dtensor_cfg.tensor_parallel_size = 3", "cluster.gpus_per_node = 8"], "3 GPUs, which do not divide the 8"),
    ("grpo_math_8b", "policy.dtensor_cfg.context_parallel_size=16", ["policy.dtensor_cfg.context_parallel_size = 16"], "do not divide"),
    ("grpo_math_8b_megatron", "policy.megatron_cfg.pipeline_model_parallel_size=5", ["policy.megatron_cfg.pipeline_model_parallel_size = 5"], "5 GPUs"),
    ("tiny", "policy.dtensor_cfg.tensor_parallel_size=2", ["policy.dtensor_cfg.tensor_parallel_size = 2", "cluster.gpus_per_node = 0"], "2 ranks, which do not divide the 1"),
    ("grpo_math_8b", "policy.train_global_batch_size=4", ["policy.train_global_batch_size = 4"], "8 copies"),
    ("grpo_math_8b", "policy.generation.vllm_cfg.tensor_parallel_size=3", ["policy.generation.vllm_cfg.tensor_parallel_size = 3"], "8 GPUs that generate"),
    ("grpo_math_70b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.num_nodes=4 policy.generation.vllm_cfg.tensor_parallel_size=64", ["policy.generation.vllm_cfg.tensor_parallel_size = 64"], "32 GPUs that generate"),
    ("grpo_math_8b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.gpus_per_node=3 policy.dtensor_cfg.tensor_parallel_size=5 policy.train_global_batch_size=5 policy.generation.vllm_cfg.tensor_parallel_size=2", ["policy.generation.vllm_cfg.tensor_parallel_size = 2", "policy.generation.colocated.resources.gpus_per_node = 3"], "3 GPUs that generate"),
    ("grpo_math_70b", "cluster.num_nodes=6 policy.generation.vllm_cfg.tensor_parallel_size=12", ["policy.generation.vllm_cfg.tensor_parallel_size = 12", "cluster.gpus_per_node = 8"], "parts of nodes"),
    ("tiny", "policy.generation.backend=vllm cluster.cpu_engine_ranks=3 policy.generation.vllm_cfg.tensor_parallel_size=2", ["policy.generation.vllm_cfg.tensor_parallel_size = 2", "cluster.cpu_engine_ranks = 3"], "3 engine ranks"),
    ("tiny", "cluster.cpu_engine_ranks=2 cluster.launcher=in_process", ["cluster.cpu_engine_ranks = 2", 'cluster.launcher = "in_process"'], "launcher=ray"),
    ("tiny", "policy.generation.backend=vllm policy.generation.vllm_cfg.tensor_parallel_size=2 cluster.launcher=in_process", ["policy.generation.vllm_cfg.tensor_parallel_size = 2", 'cluster.launcher = "in_process"'], "launcher=ray"),
    ("tiny", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.gpus_per_node=1", ["policy.generation.colocated.resources.gpus_per_node = 1", "cluster.gpus_per_node = 0"], "cluster.cpu_engine_ranks sets ranks"),
    ("grpo_math_1b", "cluster.cpu_engine_ranks=2", ["cluster.cpu_engine_ranks = 2", "cluster.gpus_per_node = 1"], "one engine rank on each"),
    ("grpo_math_8b", "policy.dtensor_cfg.sequence_parallel=true", ["policy.dtensor_cfg.sequence_parallel = true", "policy.dtensor_cfg.tensor_parallel_size = 1"], "above 1"),
    ("grpo_math_8b_megatron", "policy.megatron_cfg.sequence_parallel=true", ["policy.megatron_cfg.sequence_parallel = true", "policy.megatron_cfg.tensor_model_parallel_size = 1"], "above 1"),
    ("grpo_math_8b_megatron", "policy.megatron_cfg.distributed_data_parallel_config.overlap_param_gather=true", ["policy.megatron_cfg.distributed_data_parallel_config.overlap_param_gather = true", "policy.megatron_cfg.distributed_data_parallel_config.overlap_grad_reduce = false"], "set both true"),
    ("grpo_math_8b_megatron", "policy.megatron_cfg.distributed_data_parallel_config.overlap_param_gather=true policy.megatron_cfg.distributed_data_parallel_config.overlap_grad_reduce=true policy.megatron_cfg.distributed_data_parallel_config.use_distributed_optimizer=false", ["policy.megatron_cfg.distributed_data_parallel_config.use_distributed_optimizer = false"], "set both true"),
    ("grpo_math_70b", "policy.make_sequence_length_divisible_by=4", ["policy.make_sequence_length_divisible_by = 4", "policy.dtensor_cfg.tensor_parallel_size = 8"], "multiple of 8"),
    ("tiny", "policy.dynamic_batching.enabled=true policy.sequence_packing.enabled=true", ["policy.dynamic_batching.enabled = true", "policy.sequence_packing.enabled = true"], "at most one"),
    ("grpo_math_8b", "policy.sequence_packing.train_mb_tokens=4095", ["policy.sequence_packing.train_mb_tokens = 4095", "policy.max_total_sequence_length = 4096"], "at least 4096"),
    ("grpo_math_70b", "policy.dynamic_batching.logprob_mb_tokens=100", ["policy.dynamic_batching.logprob_mb_tokens = 100"], "at least 4096"),
    ("tiny", "data.default.env_name=exact_mach", ['data.train.env_name = "exact_mach" (derived from data.default.env_name)'], "did you mean exact_match?"),
    ("tiny", "data.default.env_name=null env.other.verifier=a:b", ["data.train.env_name = null", "data.default.env_name = null"], "exact_match, other"),
    ("tiny", "~env.exact_match", ["env = a mapping"], "at least one"),
    ("tiny", "policy.scheduler.decay=cosine", ['policy.scheduler.decay = "cosine"', "policy.scheduler.decay_steps = null"], "number of updates"),
    ("tiny", "policy.scheduler.decay_steps=5", ['policy.scheduler.decay = "constant"', "policy.scheduler.decay_steps = 5"], "nothing decays"),
    ("tiny", "policy.scheduler.min_lr_ratio=.1", ["policy.scheduler.min_lr_ratio = 0.1"], "nothing decays"),
    ("tiny", "policy.optimizer.kwargs.betas=[0.9, 1]", ["policy.optimizer.kwargs.betas = [0.9, 1.0]"], "below 1"),
    ("tiny", "checkpointing.metric_name=val:accuracy", ['checkpointing.metric_name = "val:accuracy"'], "validation/accuracy"),
]  # fmt: skip


def split(overrides):
    parts = []
    for word in overrides.split(" "):
        if parts and parts[-1].count("[") > parts[-1].count("]"):
            parts[-1] += " " + word
        else:
            parts.append(word)
    return parts


@pytest.mark.parametrize(
    ("recipe", "overrides", "keys", "words"), CONFLICTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_conflict_names_keys_values_and_what_is_valid(recipe, overrides, keys, words):
    with pytest.raises(ConfigError) as error:
        load_config(recipe, [] if overrides is None else split(overrides))
    message = str(error.value)
    assert [key for key in keys if key not in message] == []
    assert words in message


VALID = [
    ("tiny", "checkpointing.checkpoint_must_save_by='00:03:45:00'"),
    ("tiny", "loss_fn.kind=gspo loss_fn.token_level_loss=false"),
    (
        "tiny",
        "loss_fn.kind=gspo loss_fn.aggregation=seq_mean_token_mean loss_fn.ratio_clip_c=3 loss_fn.force_on_policy_ratio=false",
    ),
    ("tiny", "loss_fn.aggregation=seq_mean_token_sum_norm loss_fn.aggregation_norm_length=9"),
    ("tiny", "loss_fn.importance_sampling_correction_type=mis loss_fn.truncated_importance_sampling_ratio=3"),
    ("tiny", "policy.train_global_batch_size=256 loss_fn.force_on_policy_ratio=false"),
    ("tiny", "policy.generation.validation.top_p=.9 policy.generation.validation.temperature=.7"),
    ("tiny", "policy.generation.max_new_tokens=16"),
    ("tiny", "data.validation=null"),
    ("tiny", "policy.scheduler.decay=linear policy.scheduler.decay_steps=5 policy.scheduler.min_lr_ratio=.1"),
    ("tiny", "data.default.env_name=null"),
    ("tiny", "policy.dtensor_cfg.enabled=false policy.megatron_cfg.enabled=true"),
    ("tiny", "policy.generation.colocated.enabled=false cluster.launcher=ray"),
    (
        "tiny",
        "policy.generation.backend=vllm policy.generation.vllm_cfg.tensor_parallel_size=2 cluster.cpu_engine_ranks=4",
    ),
    ("tiny", "cluster.cpu_engine_ranks=3"),
    ("grpo_math_70b", "policy.generation.vllm_cfg.tensor_parallel_size=16"),
    (
        "tiny",
        "policy.generation.colocated.enabled=false cluster.launcher=ray grpo.async_grpo.enabled=true loss_fn.use_importance_sampling_correction=true loss_fn.force_on_policy_ratio=false policy.generation.backend=vllm grpo.async_grpo.in_flight_weight_updates=true grpo.async_grpo.recompute_kv_cache_after_weight_updates=true",
    ),
    ("grpo_math_8b", "policy.sequence_packing.enabled=false policy.sequence_packing.train_mb_tokens=100"),
    ("grpo_math_8b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.gpus_per_node=4"),
    ("grpo_math_70b", "policy.generation.colocated.enabled=false policy.generation.colocated.resources.num_nodes=4"),
]


@pytest.mark.parametrize(("recipe", "overrides"), VALID)
def test_neighbours_of_conflicts_are_valid(recipe, overrides):
    load_config(recipe, split(overrides))


def test_several_conflicts_are_all_listed():
    with pytest.raises(ConfigError) as error:
        load_config(
            "tiny", ["policy.generation.top_k=5", "policy.megatron_cfg.enabled=true", "policy.scheduler.decay_steps=3"]
        )
    assert str(error.value).startswith("3 errors in the configuration:\n  - ")
    assert str(error.value).count("\n") == 3


def test_every_rule_is_met_by_some_conflict():
    from grpo.config.check import build
    from grpo.config.files import RecipeReader
    from grpo.config.merge import merge
    from grpo.config.overrides import parse_overrides
    from grpo.config.resolve import resolve
    from grpo.config.schema import Config
    from grpo.config.shape import shape_of
    from grpo.config.validate import RULES

    silent = set(RULES)
    for recipe, overrides, _, _ in CONFLICTS:
        tree = merge(RecipeReader().read(recipe), parse_overrides(split(overrides)), shape_of(Config))
        config, _ = resolve(build(tree))
        silent -= {rule for rule in silent if any(rule(config))}
    assert silent == set()


def test_what_has_no_effect_is_noted():
    overrides = ["data.validation=null", "grpo.val_period=0", "grpo.val_at_start=false", "grpo.val_at_end=false"]
    assert load_config("tiny", overrides).notes == (
        "checkpointing.keep_top_k keeps none: without a validation set there is no validation/accuracy",
    )
    assert load_config("tiny", overrides[1:]).notes == (
        "data.validation is never used: grpo.val_period is 0, val_at_start and val_at_end are false",
    )
    assert load_config("tiny", overrides[:1]).notes == (
        "there is no validation set (data.validation), so that nothing is validated",
        "checkpointing.keep_top_k keeps none: without a validation set there is no validation/accuracy",
    )
    (note,) = load_config("tiny", ["checkpointing.keep_every_n_steps=75"]).notes
    assert note.startswith("checkpointing.keep_every_n_steps=75 is no multiple of save_period=50: every 150 steps")
    assert load_config("tiny", ["grpo.max_num_steps=5"]).notes == (
        "grpo.stop_at_reward has no effect: the run ends after grpo.max_num_steps=5, before grpo.stop_window=20 is full",
    )


@pytest.mark.parametrize("value", ["3:45:00", "00:24:00:00", "00:03:60:00", "1h", "00:03:45:0", "13500"])
def test_a_time_limit_is_days_hours_minutes_seconds(value):
    with pytest.raises(ConfigError, match=r"checkpointing\.checkpoint_must_save_by"):
        load_config("tiny", [f"checkpointing.checkpoint_must_save_by={value}"])
