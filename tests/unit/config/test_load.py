# ruff: noqa: E501 - one case a line
import pytest

from grpo.config import load_config
from grpo.errors import ConfigError

DTENSOR_70B = (
    "policy.model_name=meta-llama/Llama-3.1-70B policy.tokenizer.name=meta-llama/Llama-3.1-70B-Instruct "
    "policy.generation.vllm_cfg.tensor_parallel_size=4 policy.max_total_sequence_length=4096 cluster.num_nodes=8 "
    "policy.dtensor_cfg.enabled=True policy.dtensor_cfg.tensor_parallel_size=8 policy.dtensor_cfg.sequence_parallel=True "
    "policy.dtensor_cfg.activation_checkpointing=False loss_fn.use_importance_sampling_correction=True "
    "policy.sequence_packing.enabled=False policy.dynamic_batching.enabled=True"
)
MEGATRON_70B = (
    "policy.model_name=meta-llama/Llama-3.1-70B policy.tokenizer.name=meta-llama/Llama-3.3-70B-Instruct "
    "policy.sequence_packing.enabled=True loss_fn.use_importance_sampling_correction=True"
)
BOTH = {
    "grpo.num_prompts_per_step": 64,
    "grpo.num_generations_per_prompt": 32,
    "loss_fn.use_importance_sampling_correction": True,
    "policy.model_name": "meta-llama/Llama-3.1-70B",
    "policy.train_global_batch_size": 512,
    "policy.train_micro_batch_size": 1,
    "policy.max_total_sequence_length": 4096,
    "policy.precision": "bfloat16",
    "policy.optimizer.name": "torch.optim.AdamW",
    "policy.optimizer.kwargs.lr": 3e-7,
    "policy.generation.vllm_cfg.gpu_memory_utilization": 0.6,
    "policy.generation.max_new_tokens": 4096,
    "cluster.num_nodes": 8,
    "cluster.gpus_per_node": 8,
}


def value(config, key):
    for name in key.split("."):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"),
    [
        (
            "examples/configs/grpo_math_8B.yaml",
            DTENSOR_70B,
            {
                "policy.tokenizer.name": "meta-llama/Llama-3.1-70B-Instruct",
                "policy.logprob_batch_size": 2,
                "policy.dtensor_cfg.enabled": True,
                "policy.dtensor_cfg.tensor_parallel_size": 8,
                "policy.dtensor_cfg.sequence_parallel": True,
                "policy.dtensor_cfg.activation_checkpointing": False,
                "policy.megatron_cfg.enabled": False,
                "policy.sequence_packing.enabled": False,
                "policy.dynamic_batching.enabled": True,
                "policy.dynamic_batching.train_mb_tokens": 4096,
                "policy.dynamic_batching.logprob_mb_tokens": 8192,
                "policy.generation.vllm_cfg.tensor_parallel_size": 4,
            },
        ),
        (
            "examples/configs/grpo_math_70B_megatron.yaml",
            MEGATRON_70B,
            {
                "policy.tokenizer.name": "meta-llama/Llama-3.3-70B-Instruct",
                "policy.logprob_batch_size": 4,
                "policy.dtensor_cfg.enabled": False,
                "policy.megatron_cfg.enabled": True,
                "policy.megatron_cfg.tensor_model_parallel_size": 4,
                "policy.megatron_cfg.pipeline_model_parallel_size": 4,
                "policy.sequence_packing.enabled": True,
                "policy.sequence_packing.algorithm": "modified_first_fit_decreasing",
                "policy.sequence_packing.logprob_mb_tokens": 16384,
                "policy.dynamic_batching.enabled": False,
                "policy.generation.vllm_cfg.tensor_parallel_size": 8,
            },
        ),
    ],
)
def test_the_users_command_lines_resolve(recipe, overrides, expected):
    resolved = load_config(recipe, overrides.split())
    wanted = BOTH | expected
    assert {key: value(resolved.config, key) for key in wanted} == wanted
    assert resolved.notes == (f"{recipe} is read as the shipped recipe {recipe.split('/')[-1][:-5].lower()}",)


@pytest.mark.parametrize("name", ["1B", "8B", "8B_megatron", "70B", "70B_megatron"])
def test_old_paths_are_the_shipped_recipes(name):
    old, new = load_config(f"examples/configs/grpo_math_{name}.yaml"), load_config(f"grpo_math_{name.lower()}")
    assert old.config == new.config
    assert new.notes == ()


def test_a_file_that_exists_at_an_old_path_is_the_one_that_is_read(write):
    path = write("defaults: tiny\ngrpo: {seed: 9}\n", "examples/configs/grpo_math_8B.yaml")
    assert load_config(path).config.grpo.seed == 9


def test_the_last_override_wins_over_the_file_over_its_parent(write):
    path = write("defaults: tiny\ngrpo: {seed: 1, val_period: 5}\n")
    config = load_config(path, ["grpo.seed=2", "grpo.seed=3"]).config
    assert (config.grpo.seed, config.grpo.val_period, config.grpo.num_prompts_per_step) == (3, 5, 32)


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_hydra_prefixes_are_plain_assignments(prefix):
    assert load_config("tiny", [f"{prefix}grpo.seed=7"]).config.grpo.seed == 7


def test_a_removed_key_falls_back_to_the_default():
    assert load_config("tiny", ["~loss_fn.entropy_coef"]).config.loss_fn.entropy_coef == 0
    assert load_config("tiny").config.loss_fn.entropy_coef != 0


def test_removing_what_is_not_set_is_an_error():
    with pytest.raises(ConfigError, match=r"~env\.maths: nothing is set there"):
        load_config("tiny", ["~env.maths"])


def test_maps_of_the_user_take_new_names():
    overrides = [
        "env.own.verifier=my.module:score",
        "env.own.kwargs.depth.x=[1, 2]",
        "data.default.env_name=own",
        "~env.exact_match",
    ]
    resolved = load_config("tiny", overrides)
    assert resolved.config.env["own"].kwargs == {"depth": {"x": [1, 2]}}
    assert resolved.config.data.train.env_name == "own"
    assert resolved.provenance["env.own.kwargs.depth.x"] == "override"
    assert resolved.notes == ()


def test_an_env_that_scores_nothing_is_noted():
    assert load_config("tiny", ["env.own.verifier=a:b"]).notes == (
        "env.own scores no dataset; leave it out with ~env.own",
    )


def test_another_kind_drops_the_inherited_keys_that_it_lacks():
    config = load_config("tiny", ["data.train.kind=file", "data.train.data_path=a.jsonl"]).config
    assert config.data.train.model_dump(exclude_defaults=True) == {
        "kind": "file",
        "data_path": "a.jsonl",
        "env_name": "exact_match",
    }


def test_another_kind_keeps_the_inherited_keys_that_it_has():
    config = load_config("grpo_math_1b", ["data.train.data_path=a.jsonl", "data.train.kind=file"]).config
    assert (config.data.train.input_key, config.data.train.output_key) == ("problem", "expected_answer")


def test_provenance_names_line_override_derivation_and_default(write):
    path = write("defaults: tiny\n\ngrpo:\n  # why\n  seed: 1\n")
    resolved = load_config(path, ["policy.optimizer.kwargs.lr=3e-7"])
    assert resolved.provenance["grpo.seed"] == "own.yaml:5"
    assert resolved.provenance["policy.optimizer.kwargs.lr"] == "override"
    assert (
        resolved.provenance["policy.generation.validation.max_new_tokens"]
        == "derived from policy.generation.max_new_tokens"
    )
    assert resolved.provenance["grpo.advantage_epsilon"] == "default"
    assert resolved.provenance["policy.model_name"].startswith("grpo/recipes/tiny.yaml:")


def test_the_first_conflict_says_where_each_value_was_set():
    with pytest.raises(ConfigError) as error:
        load_config("tiny", ["grpo.num_prompts_per_step=31"])
    assert str(error.value) == (
        "grpo.num_prompts_per_step = 31 (override), grpo.num_generations_per_prompt = 16 (grpo/recipes/tiny.yaml:4), "
        "policy.train_global_batch_size = 512 (grpo/recipes/tiny.yaml:30): the 496 completions of a step are not a multiple "
        "of the batch; valid batches: 16, 31, 62, 124, 248, 496"
    )
